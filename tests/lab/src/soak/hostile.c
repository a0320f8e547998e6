/* A rank whose helpers do not want to end with it: `hostile HELPERS THEN`.
 *
 * HELPERS are letters, one for each kind below. THEN is what the rank itself does once they are there
 * and it has said `up`: `stay`, `exit` or `fail`. No helper lives for longer than LIFE seconds,
 * whatever becomes of the test.
 *
 * All of them have a file open on which the rank has put a lock: as long as any lives, be it for a moment
 * each, nobody else can have the lock. A look at the process table would not find some of them. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LIFE 60
#define MANY 1000
#define CROWD 12000

static time_t over;

static void linger(void)
{
    while (time(NULL) < over)
        sleep(1);
    _exit(0);
}

/* Ignores whatever can be ignored. */
static void stubborn(void)
{
    for (int number = 1; number < 32; number++)
        signal(number, SIG_IGN);
}

/* Whether the machine has so many processes, the dead among them, that a chain may take what is left: those
 * of it that nobody collects are there for good. */
static int crowded(void)
{
    int all = 0;
    FILE *load = fopen("/proc/loadavg", "re");
    if (load == NULL)
        return 0;
    if (fscanf(load, "%*s %*s %*s %*d/%d", &all) != 1)
        all = 0;
    fclose(load);
    return all > CROWD;
}

/* Every process lives just long enough to fork the next one. */
static void chain(int sessions)
{
    for (unsigned link = 1; time(NULL) < over; link++) {
        while (link % 256 == 0 && crowded() && time(NULL) < over)
            usleep(10000);
        if (fork() != 0)
            _exit(0);
        if (sessions)
            setsid();
    }
    _exit(0);
}

/* Twice as many with each generation, every one in a session of its own. */
static void bomb(int generations)
{
    while (generations-- > 0) {
        if (fork() == 0)
            setsid();
    }
    linger();
}

static void many(void)
{
    for (int child = 0; child < MANY; child++) {
        if (fork() == 0)
            linger();
    }
    linger();
}

/* No parent, no session of the rank's, no stream. */
static void doubled(void)
{
    setsid();
    if (fork() != 0)
        _exit(0);
    int null = open("/dev/null", O_RDWR);
    for (int stream = 0; stream < 3; stream++)
        dup2(null, stream);
    stubborn();
    linger();
}

static void traced(void)
{
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        linger();
    }
    waitpid(child, NULL, 0);
    stubborn();
    linger();
}

/* In shared memory, named by the job, and in the job's own directory. */
static void files(void)
{
    char path[256];
    const char *places[] = { "/dev/shm/rlaunch-%s-hostile.%d", "%s/hostile.%d" };
    const char *names[] = { getenv("RLAUNCH_JOB_ID"), getenv("TMPDIR") };
    for (int place = 0; place < 2; place++) {
        if (names[place] == NULL)
            continue;
        snprintf(path, sizeof path, places[place], names[place], getpid());
        close(open(path, O_CREAT | O_WRONLY, 0600));
    }
    linger();
}

static void lock(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/hostile.alive.%d", getuid());
    int file = open(path, O_CREAT | O_RDWR, 0600);
    if (file < 0 || flock(file, LOCK_SH) != 0)
        _exit(4);
}

static void help(char kind)
{
    switch (kind) {
    case 'c': chain(0); break;
    case 's': chain(1); break;
    case 'b': bomb(5); break;
    case 'm': many(); break;
    case 'd': doubled(); break;
    case 't': traced(); break;
    case 'p': raise(SIGSTOP); linger(); break;       /* stopped */
    case 'h': setsid(); stubborn(); linger(); break; /* holds the rank's streams */
    case 'f': files(); break;
    case 'e': clearenv(); execl("/proc/self/exe", "hostile", "h", "linger", NULL); break;
    }
    _exit(2);
}

int main(int count, char **words)
{
    over = time(NULL) + LIFE;
    if (count != 3)
        return 2;
    /* Installed as root's with the set-user-ID bit: nothing of it is the user's any more. */
    if (strcmp(words[2], "root") == 0) {
        if (setresuid(0, 0, 0) != 0 || setsid() < 0)
            return 3;
        linger();
    }
    if (strcmp(words[2], "linger") == 0) {
        setsid();
        stubborn();
        linger();
    }
    lock();
    for (const char *kind = words[1]; *kind != 0; kind++) {
        if (fork() == 0)
            help(*kind);
    }
    usleep(20000);
    puts("up");
    fflush(stdout);
    if (strcmp(words[2], "fail") == 0)
        return 3;
    while (strcmp(words[2], "stay") == 0)
        pause();
    return 0;
}
