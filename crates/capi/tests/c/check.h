/* Checks for the C tests that report the place and value of a failure. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <lanefs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(holds)                                                                                          \
    do {                                                                                                      \
        if (!(holds)) {                                                                                       \
            fprintf(stderr, "%s:%d: not so: %s (errno %d %s; \"%s\")\n", __FILE__, __LINE__, #holds, errno,   \
                    strerror(errno), lanefs_last_error());                                                    \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

/* A call that returns 0. */
#define OK(call) CHECK((call) == 0)
/* A call that returns -1 or NULL with that errno, and says something. */
#define FAILS(number, call)                                                                                   \
    do {                                                                                                      \
        errno = 0;                                                                                            \
        CHECK((long)(call) == _Generic((call), int: -1, long: -1, default: 0));                               \
        CHECK(errno == (number) && *lanefs_last_error());                                                     \
    } while (0)

#endif
