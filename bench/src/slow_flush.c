/* A flush of a server takes 2 ms, whatever its medium is: loaded before nbdkit, whose filters delay
   reads and writes alone. */
#include <unistd.h>

int fdatasync(int fd) { (void)fd; return usleep(2000); }
int fsync(int fd) { (void)fd; return usleep(2000); }
