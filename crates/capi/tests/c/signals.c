/* Signals of the program reach its own threads only: signals VOLUME. */
#define _GNU_SOURCE
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Returns the signals that a thread has blocked, as /proc has them; 0 for a thread that has ended.
 * */
static unsigned long long blocked(const char *task)
{
    char path[300], line[200];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", task);
    FILE *status = fopen(path, "r");
    if (!status)
        return 0;
    while (fgets(line, sizeof line, status))
        sscanf(line, "SigBlk: %llx", &mask);
    fclose(status);
    return mask;
}

static unsigned long long bit(int signal)
{
    return 1ULL << (signal - 1);
}

/* As blocked(), of a thread that runs: the C library blocks all signals while a thread starts or
 * ends. */
static unsigned long long settled(const char *task)
{
    unsigned long long mask = blocked(task);
    for (int i = 0; i < 10000 && mask & bit(SIGSEGV); i++) {
        usleep(1000);
        mask = blocked(task);
    }
    return mask;
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    OK(lanefs_mkfs(argv[1], 64 << 20, NULL));
    sigset_t before, after;
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    OK(pthread_sigmask(SIG_SETMASK, &before, NULL));
    struct lanefs_volume *vol = lanefs_open_volume(argv[1], NULL);
    CHECK(vol);
    struct lanefs_file *file = lanefs_open(vol, "/f", O_RDWR | O_CREAT, 0644);
    CHECK(file && lanefs_pwrite(file, "x", 1, 0) == 1);
    OK(lanefs_sync(vol));
    OK(pthread_sigmask(SIG_SETMASK, NULL, &after));
    CHECK(sigismember(&after, SIGUSR2) == 1 && sigismember(&after, SIGTERM) == 0);

    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    int others = 0;
    for (struct dirent *task; (task = readdir(tasks));) {
        if (task->d_name[0] == '.' || atol(task->d_name) == syscall(SYS_gettid))
            continue;
        unsigned long long mask = settled(task->d_name);
        if (!mask)
            continue;
        CHECK(mask & bit(SIGTERM) && mask & bit(SIGINT) && mask & bit(SIGALRM) && mask & bit(SIGRTMIN));
        CHECK(!(mask & bit(SIGSEGV)));
        others++;
    }
    closedir(tasks);
    CHECK(others > 0);
    OK(lanefs_close(file));
    OK(lanefs_close_volume(vol));
    puts("signals reach the program");
    return 0;
}
