/* A run's directory is locked by fcntl on its file `lock`. The system drops such a lock when the process
 * ends, however it ends, and a shared file system keeps it between machines. Releasing the lock removes the
 * file; a file that a killed run has left is used again. */
#include "train/lock.h"

#include "base/error.h"
#include "base/memory.h"
#include "base/output.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct dsc_lock {
    int fd; /* -1: nothing is locked. Closing any other descriptor of the file would end the lock. */
    char *directory, *path;
    size_t kept; /* length of the part of `directory` that existed before; all of it: nothing was made */
};

static void destroy(dsc_lock **lock) {
    if ((*lock)->fd >= 0)
        close((*lock)->fd);
    dsc_memory_free(&(*lock)->path);
    dsc_memory_free(&(*lock)->directory);
    dsc_memory_free(lock);
}

/* 0 when the process that held the lock before has removed the file: then another file has to be made. */
static int is_current(const dsc_lock *lock) {
    struct stat own, named;
    return fstat(lock->fd, &own) == 0 && stat(lock->path, &named) == 0 && own.st_dev == named.st_dev &&
           own.st_ino == named.st_ino;
}

/* *held = 0 when the caller has to try again. */
static dsc_status try_once(dsc_lock *lock, int *held) {
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    lock->fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock->fd < 0)
        return dsc_output_refused("open", lock->path, errno);
    if (fcntl(lock->fd, F_SETLK, &whole) != 0 && (errno == EACCES || errno == EAGAIN))
        return DSC_FAIL(
            DSC_E_INVALID,
            "another run is writing into '%s': wait for its end, stop it or choose another output "
            "directory",
            lock->directory);
    *held = is_current(lock);
    if (!*held)
        close(lock->fd);
    return DSC_OK;
}

static dsc_status take(dsc_lock *lock, const char *directory) {
    int held = 0;
    DSC_TRY(dsc_memory_strdup(directory, &lock->directory));
    lock->kept = dsc_directory_existing(lock->directory);
    DSC_TRY(dsc_output_path(directory, "lock", &lock->path));
    while (!held) {
        lock->fd = -1;
        DSC_TRY(dsc_directory_make(directory));
        DSC_TRY(try_once(lock, &held));
    }
    return DSC_OK;
}

dsc_status dsc_lock_take(const char *directory, dsc_lock **out) {
    dsc_lock *lock;
    DSC_TRY(dsc_memory_alloc(1, sizeof *lock, &lock));
    lock->fd = -1;
    dsc_status status = take(lock, directory);
    if (status != DSC_OK) {
        if (lock->directory)
            dsc_directory_remove_made(lock->directory, lock->kept);
        destroy(&lock);
        return dsc_error_pass(status, __FILE__, __LINE__);
    }
    *out = lock;
    return DSC_OK;
}

void dsc_lock_release(dsc_lock **lock) {
    if (!lock || !*lock)
        return;
    if (is_current(*lock))
        unlink((*lock)->path); /* while it is locked: later it may be another process's */
    dsc_directory_remove_made((*lock)->directory, (*lock)->kept);
    destroy(lock);
}
