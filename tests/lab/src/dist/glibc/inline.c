struct stat64;
int __xstat64(int version, const char *path, struct stat64 *into);
int __lxstat64(int version, const char *path, struct stat64 *into);
int __fxstat64(int version, int descriptor, struct stat64 *into);
int __fxstatat64(int version, int at, const char *path, struct stat64 *into, int flags);
#if defined(__x86_64__)
#define VERSION 1
#else
#define VERSION 0
#endif
#define HIDDEN __attribute__((visibility("hidden")))
HIDDEN int stat64(const char *path, struct stat64 *into)
{
    return __xstat64(VERSION, path, into);
}
HIDDEN int lstat64(const char *path, struct stat64 *into)
{
    return __lxstat64(VERSION, path, into);
}
HIDDEN int fstat64(int descriptor, struct stat64 *into)
{
    return __fxstat64(VERSION, descriptor, into);
}
HIDDEN int fstatat64(int at, const char *path, struct stat64 *into, int flags)
{
    return __fxstatat64(VERSION, at, path, into, flags);
}
