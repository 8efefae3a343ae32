/* A process that is killed cannot write the end of its metrics nor remove its lock: no signal announces SIGKILL,
 * with which launchers end the other ranks of a job, the kernel a process that takes too much memory, and batch
 * systems a job at its limit. So a second process waits at the end of a pipe for the end of the first. It has a
 * session of its own, because launchers kill process groups, and holds no other file, because they also wait for
 * files to be closed. A batch system that kills all processes of a job ends it as well; then the run is completed
 * when it is resumed. */
#include "cli/watcher.h"

#include "descent/train.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };

/* Closes all files but one. */
static void close_files(int except) {
    DIR *files = opendir("/proc/self/fd");
    if (!files)
        return;
    for (const struct dirent *entry; (entry = readdir(files));) {
        int fd = (int)strtol(entry->d_name, NULL, 10);
        if (entry->d_name[0] != '.' && fd != except && fd != dirfd(files))
            close(fd);
    }
    closedir(files);
}

/* Reads the name of the directory, ended by a 0, and another 0 if the run has ended by itself; then completes the
 * metrics unless it has. */
static void wait_for_end(int pipe_end) {
    char text[MAX_PATH + 1] = "";
    size_t used = 0;
    for (ssize_t got; used < MAX_PATH && (got = read(pipe_end, text + used, MAX_PATH - used)) > 0;)
        used += (size_t)got;
    size_t length = strlen(text);
    int ended = used > length + 1;
    if (length > 0 && used > length && !ended && dsc_train_complete_died(text) != DSC_OK)
        return; /* another process trains there, or the disk is full: there is nobody to tell */
}

static void be_watcher(int pipe_end) {
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE, SIGQUIT};
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++)
        signal(ignored[i], SIG_IGN);
    close_files(pipe_end);
    wait_for_end(pipe_end);
}

int dsc_watcher_start(void) {
    int ends[2];
    if (pipe(ends) != 0)
        return -1;
    fcntl(ends[1], F_SETFD, FD_CLOEXEC);
    pid_t child = fork();
    if (child ==
        0) { /* forks again and exits: libraries that wait for children of this process never see the watcher */
        setsid();
        if (fork() == 0)
            be_watcher(ends[0]);
        _exit(0);
    }
    close(ends[0]);
    if (child < 0) {
        close(ends[1]);
        return -1;
    }
    while (waitpid(child, NULL, 0) < 0 && kill(child, 0) == 0)
        continue;
    return ends[1];
}

static void tell(int watcher, const char *text, size_t length) {
    if (watcher >= 0 && length <= MAX_PATH && write(watcher, text, length) != (ssize_t)length)
        return; /* it was killed: the run is completed when it is resumed */
}

void dsc_watcher_watch(int watcher, const char *directory) {
    tell(watcher, directory, strlen(directory) + 1);
}

void dsc_watcher_end(int watcher) {
    tell(watcher, "", 1);
    if (watcher >= 0)
        close(watcher);
}
