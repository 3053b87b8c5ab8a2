/* Flags of chattr(1) decide at the open whether a file is written: flags VOLUME. VOLUME has the
 * files plain, append (append-only) and immutable. */
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct lanefs_volume *vol;
    struct lanefs_file *f;
    char buf[8];

    CHECK(argc == 2);
    CHECK((vol = lanefs_open_volume(argv[1], NULL)));
    FAILS(EPERM, lanefs_open(vol, "/immutable", O_WRONLY, 0));
    FAILS(EPERM, lanefs_open(vol, "/immutable", O_RDWR | O_APPEND, 0));
    FAILS(EPERM, lanefs_open(vol, "/immutable", O_RDWR | O_CREAT | O_TRUNC, 0644));
    FAILS(EPERM, lanefs_open(vol, "/append", O_RDWR, 0));
    FAILS(EPERM, lanefs_open(vol, "/append", O_WRONLY | O_APPEND | O_TRUNC, 0));
    FAILS(EPERM, lanefs_truncate(vol, "/immutable", 1));
    CHECK((f = lanefs_open(vol, "/immutable", O_RDONLY | O_CREAT, 0644)));
    CHECK(lanefs_pread(f, buf, sizeof buf, 0) == 4 && memcmp(buf, "line", 4) == 0);
    OK(lanefs_close(f));
    CHECK((f = lanefs_open(vol, "/append", O_RDWR | O_APPEND, 0)));
    CHECK(lanefs_pwrite(f, "more", 4, 0) == 4 && lanefs_pread(f, buf, sizeof buf, 0) == 8);
    CHECK(memcmp(buf, "linemore", 8) == 0);
    OK(lanefs_close(f));
    CHECK((f = lanefs_open(vol, "/plain", O_WRONLY | O_TRUNC, 0)));
    OK(lanefs_close(f));
    OK(lanefs_close_volume(vol));
    puts("all flags heeded");
    return 0;
}
