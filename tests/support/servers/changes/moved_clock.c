/* Preloaded into a server: its wall clock is off by the seconds that the first eight bytes of a file say. The file may
 * change at any time. The monotonic clock stays, as on a machine whose clock is set. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long *moved;
static int opened;

static long seconds(void) {
    /* No dlsym: the allocator asks for the time before the linker is ready. */
    if (!opened) {
        const char *name = getenv("MOVED_CLOCK");
        if (!name) return 0;
        opened = 1;
        int file = open(name, O_RDONLY | O_CLOEXEC);
        void *found = mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        if (found == MAP_FAILED) abort(); /* a test of a clock that stays would show nothing */
        moved = found;
        close(file);
    }
    return *moved;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    long failed = syscall(SYS_clock_gettime, clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += seconds();
    return (int)failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec found;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
