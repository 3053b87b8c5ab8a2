/* direct FILE: overwrites its first page by O_DIRECT. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <unistd.h>

static char page[4096] __attribute__((aligned(4096)));

int main(int argc, char **argv) {
    int fd = argc == 2 ? open(argv[1], O_WRONLY | O_DIRECT) : -1;
    return pwrite(fd, page, sizeof page, 0) != sizeof page;
}
