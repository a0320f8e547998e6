/* A rank whose helper processes try to outlive it: `hostile HELPERS THEN`.
 *
 * HELPERS are letters, one for each kind of helper in `help`. THEN is what the rank itself does after it
 * has started them and printed `up`: `stay`, `exit` or `fail`. No helper runs for longer than LIFE
 * seconds, whatever happens to the test.
 *
 * All helpers inherit a file that the rank has locked: as long as any of them runs, no other process can
 * take the lock. This also detects helpers that run too briefly to be seen in the process table. */
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
#define CHILDREN 1000
#define MAX_PROCESSES 12000

static time_t over;

static void linger(void)
{
    while (time(NULL) < over)
        sleep(1);
    _exit(0);
}

/* Ignores every signal that can be ignored. */
static void stubborn(void)
{
    for (int number = 1; number < 32; number++)
        signal(number, SIG_IGN);
}

/* Returns whether the machine has so many processes, zombies included, that a chain could use up its pids:
 * zombies of a chain that no process reaps stay. */
static int crowded(void)
{
    int all = 0;
    FILE *load = fopen("/proc/loadavg", "re");
    if (load == NULL)
        return 0;
    if (fscanf(load, "%*s %*s %*s %*d/%d", &all) != 1)
        all = 0;
    fclose(load);
    return all > MAX_PROCESSES;
}

/* Forks again and again; each process exits as soon as it has forked the next one. */
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

/* Doubles the number of processes with each generation, each in a session of its own. */
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
    for (int child = 0; child < CHILDREN; child++) {
        if (fork() == 0)
            linger();
    }
    linger();
}

/* Leaves the rank's process tree, its session and its streams. */
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

/* Makes files in shared memory, named as those of the job, and in the job's own directory. */
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

/* Prints more than any pipe holds. */
static void flood(int stream)
{
    static const char line[] = "and on and on\n";
    while (time(NULL) < over && write(stream, line, sizeof line - 1) > 0)
        ;
    _exit(0);
}

/* The locked file has the rank's own pid, by which its helpers, of the same name, are told from it. */
static void lock(void)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/hostile.alive.%d", getuid());
    int file = open(path, O_CREAT | O_RDWR, 0600);
    if (file < 0 || flock(file, LOCK_SH) != 0 || ftruncate(file, 0) != 0)
        _exit(4);
    dprintf(file, "%d", getpid());
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
    case 'o': flood(1); break;
    case 'x': flood(2); break;
    case 'e': clearenv(); execl("/proc/self/exe", "hostile", "h", "linger", NULL); break;
    }
    _exit(2);
}

int main(int count, char **words)
{
    over = time(NULL) + LIFE;
    if (count != 3)
        return 2;
    /* Installed as a set-user-ID program of root: the process no longer belongs to the user. */
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
