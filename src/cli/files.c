/* Directories and small files. */
#include "cli/files.h"
#include "cli/support.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PATH = 4096 };

static int is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

dsc_status dsc_cli_make_directory(const char *path) {
    char part[MAX_PATH];
    if (snprintf(part, sizeof part, "%s", path) >= (int)sizeof part)
        return DSC_CLI_FAIL(DSC_E_INVALID, "'%.60s...': the name is too long", path);
    for (char *p = part + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            (void)mkdir(part, 0777); /* the last call below says what is wrong */
            *p = '/';
        }
    if (mkdir(part, 0777) == 0 || is_directory(part))
        return DSC_OK;
    return DSC_CLI_FAIL(DSC_E_IO, "cannot make the directory '%s': %s", path, strerror(errno));
}

static dsc_status cannot_write(const char *path, FILE *file, const char *temporary) {
    int number = errno;
    if (file)
        fclose(file);
    if (temporary)
        unlink(temporary);
    return DSC_CLI_FAIL(DSC_E_IO, "cannot write '%s': %s", path, strerror(number));
}

dsc_status dsc_cli_write_file(const char *path, const char *text) {
    char temporary[MAX_PATH];
    if (snprintf(temporary, sizeof temporary, "%s.%ld.new", path, (long)getpid()) >= (int)sizeof temporary)
        return DSC_CLI_FAIL(DSC_E_INVALID, "'%.60s...': the name is too long", path);
    FILE *file = fopen(temporary, "w");
    if (!file)
        return cannot_write(path, NULL, NULL);
    if (fputs(text, file) < 0 || fflush(file) != 0 || fsync(fileno(file)) != 0)
        return cannot_write(path, file, temporary);
    if (fclose(file) != 0 || rename(temporary, path) != 0)
        return cannot_write(path, NULL, temporary);
    return DSC_OK;
}

dsc_status dsc_cli_read_file(const char *path, const char *what, size_t limit, char **out, size_t *length) {
    char *text = NULL;
    FILE *file = fopen(path, "rb");
    if (!file)
        return DSC_CLI_FAIL(errno == ENOENT ? DSC_E_NOT_FOUND : DSC_E_INVALID, "cannot read %s '%s': %s",
                            what, path, strerror(errno));
    dsc_status status = dsc_cli_alloc((int64_t)limit + 2, 1, &text);
    if (status == DSC_OK) {
        errno = 0;
        *length = fread(text, 1, limit + 1, file);
        if (ferror(file))
            status = DSC_CLI_FAIL(DSC_E_INVALID, "cannot read %s '%s': %s", what, path, strerror(errno));
        else if (*length > limit)
            status = DSC_CLI_FAIL(DSC_E_FORMAT, "'%s' is longer than %zu bytes: not %s", path, limit, what);
    }
    fclose(file);
    if (status != DSC_OK) {
        dsc_cli_free(&text);
        return status;
    }
    *out = text;
    return DSC_OK;
}
