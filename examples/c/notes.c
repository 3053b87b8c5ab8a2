/* Keeps notes in a volume: makes the volume if there is none, adds a line durably, and shows all
 * lines.
 *
 *     cc -o notes notes.c $(pkg-config --cflags --libs lanefs)
 *     ./notes notes.img "buy milk"
 */
#include <errno.h>
#include <fcntl.h>
#include <lanefs.h>
#include <stdio.h>
#include <string.h>

static int fail(const char *what)
{
    fprintf(stderr, "notes: %s: %s\n", what, lanefs_last_error());
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: notes VOLUME TEXT\n");
        return 2;
    }
    struct lanefs_volume *volume = lanefs_open_volume(argv[1], "noatime,commit=30");
    if (!volume && errno == ENOENT) {
        if (lanefs_mkfs(argv[1], 16 << 20, "label=notes") != 0)
            return fail("cannot make the volume");
        volume = lanefs_open_volume(argv[1], "noatime,commit=30");
    }
    if (!volume)
        return fail("cannot open the volume");

    struct lanefs_file *file = lanefs_open(volume, "/notes", O_RDWR | O_CREAT | O_APPEND, 0600);
    if (!file)
        return fail("/notes");
    char line[256];
    int len = snprintf(line, sizeof line, "%.254s\n", argv[2]);
    if (lanefs_pwrite(file, line, (size_t)len, 0) != len)
        return fail("cannot write");
    /* From here on the note survives any crash. */
    if (lanefs_fsync(file) != 0)
        return fail("cannot sync");

    ssize_t n;
    for (int64_t at = 0; (n = lanefs_pread(file, line, sizeof line, at)) > 0; at += n)
        fwrite(line, 1, (size_t)n, stdout);
    if (n < 0)
        return fail("cannot read");

    if (lanefs_close(file) != 0 || lanefs_close_volume(volume) != 0)
        return fail("cannot close");
    return 0;
}
