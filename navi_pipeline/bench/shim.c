// Preloaded library that fails or kills a program at its n-th change of a file below a folder, and shifts its clock.
//
// The page of SHIM_PAGE is shared by all processes of a command; shim.py has its layout. A change is an open for
// writing, a write, truncate, sync, rename, link, unlink, mkdir or rmdir. mmap is not covered.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct page {
    int64_t changes, first, last, error, signal, clock_ns, fired, deny_locks, traced;
    char folder[4024];
};

static struct page none, *page = &none;

__attribute__((constructor)) static void attach(void) {
    const char* name = getenv("SHIM_PAGE");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void* found = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found != MAP_FAILED) page = found;
    syscall(SYS_close, file);
}

static int below(const char* path) {
    size_t length = strnlen(page->folder, sizeof page->folder);
    return length && strncmp(path, page->folder, length) == 0 && (path[length] == '/' || path[length] == 0);
}

// Append a change's number, call and path to the file SHIM_TRACE.
static void trace(int64_t number, const char* call, const char* path) {
    char line[PATH_MAX + 64];
    const char* name = getenv("SHIM_TRACE");
    int file = name ? (int)syscall(SYS_openat, AT_FDCWD, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (file < 0) return;
    int size = snprintf(line, sizeof line, "%lld %s %s\n", (long long)number, call, path);
    syscall(SYS_write, file, line, (size_t)size);
    syscall(SYS_close, file);
}

// Whether this change fails; errno is set. Kills the process where the page says so.
static int fails(const char* call, const char* path) {
    int64_t number = __atomic_add_fetch(&page->changes, 1, __ATOMIC_SEQ_CST);
    if (page->traced) trace(number, call, path);
    if (number < page->first || number > page->last) return 0;
    __atomic_add_fetch(&page->fired, 1, __ATOMIC_SEQ_CST);
    if (page->signal) {
        // A process group of its own would survive: what dies is this process, as in an out-of-memory kill.
        syscall(SYS_kill, getpid(), (int)page->signal);
        pause();
    }
    errno = (int)page->error;
    return 1;
}

static int path_fails(const char* call, int folder, const char* path) {
    char whole[PATH_MAX], place[PATH_MAX], link[64];
    if (page == &none || !path) return 0;
    if (path[0] == '/') return below(path) && fails(call, path);
    if (folder == AT_FDCWD) {
        if (!getcwd(place, sizeof place)) return 0;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, place, sizeof place - 1);
        if (length < 0) return 0;
        place[length] = 0;
    }
    if (snprintf(whole, sizeof whole, "%s/%s", place, path) >= (int)sizeof whole) return 0;
    return below(whole) && fails(call, whole);
}

static int file_fails(const char* call, int file) {
    char link[64], path[PATH_MAX];
    if (page == &none) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (length <= 0) return 0;
    path[length] = 0;
    return below(path) && fails(call, path);
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPEN(name) \
    int name(const char* path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) && path_fails(#name, AT_FDCWD, path)) return -1; \
        return real(path, flags, mode); \
    }
#define OPENAT(name) \
    int name(int folder, const char* path, int flags, ...) { \
        REAL(name); \
        va_list rest; va_start(rest, flags); int mode = va_arg(rest, int); va_end(rest); \
        if (flags & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC) && path_fails(#name, folder, path)) return -1; \
        return real(folder, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name) \
    FILE* name(const char* path, const char* mode) { \
        REAL(name); \
        if (strpbrk(mode, "wa+") && path_fails(#name, AT_FDCWD, path)) return NULL; \
        return real(path, mode); \
    }
FOPEN(fopen)
FOPEN(fopen64)

#define ON_FILE(result, name, arguments, given) \
    result name arguments { \
        REAL(name); \
        if (file_fails(#name, file)) return -1; \
        return real given; \
    }
ON_FILE(ssize_t, write, (int file, const void* data, size_t size), (file, data, size))
ON_FILE(ssize_t, writev, (int file, const struct iovec* data, int count), (file, data, count))
ON_FILE(ssize_t, pwrite, (int file, const void* data, size_t size, off_t place), (file, data, size, place))
ON_FILE(ssize_t, pwrite64, (int file, const void* data, size_t size, off64_t place), (file, data, size, place))
ON_FILE(int, fsync, (int file), (file))
ON_FILE(int, fdatasync, (int file), (file))
ON_FILE(int, ftruncate, (int file, off_t size), (file, size))
ON_FILE(int, ftruncate64, (int file, off64_t size), (file, size))
ON_FILE(ssize_t, copy_file_range, (int source, off64_t* from, int file, off64_t* to, size_t size, unsigned flags),
        (source, from, file, to, size, flags))
ON_FILE(ssize_t, sendfile64, (int file, int source, off64_t* from, size_t size), (file, source, from, size))

#define ON_PATH(name, arguments, folder, path, given) \
    int name arguments { \
        REAL(name); \
        if (path_fails(#name, folder, path)) return -1; \
        return real given; \
    }
ON_PATH(rename, (const char* from, const char* to), AT_FDCWD, to, (from, to))
ON_PATH(renameat, (int a, const char* from, int b, const char* to), b, to, (a, from, b, to))
ON_PATH(link, (const char* from, const char* to), AT_FDCWD, to, (from, to))
ON_PATH(symlink, (const char* from, const char* to), AT_FDCWD, to, (from, to))
ON_PATH(unlink, (const char* path), AT_FDCWD, path, (path))
ON_PATH(unlinkat, (int folder, const char* path, int flags), folder, path, (folder, path, flags))
ON_PATH(rmdir, (const char* path), AT_FDCWD, path, (path))
ON_PATH(mkdir, (const char* path, mode_t mode), AT_FDCWD, path, (path, mode))
ON_PATH(mkdirat, (int folder, const char* path, mode_t mode), folder, path, (folder, path, mode))

// A shared disk without locks.
int flock(int file, int operation) {
    REAL(flock);
    if (page->deny_locks) {
        errno = ENOLCK;
        return -1;
    }
    return real(file, operation);
}

int clock_gettime(clockid_t clock, struct timespec* now) {
    int failed = (int)syscall(SYS_clock_gettime, clock, now);
    if (!failed && page->clock_ns && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t time = (int64_t)now->tv_sec * 1000000000 + now->tv_nsec + page->clock_ns;
        now->tv_sec = time / 1000000000;
        now->tv_nsec = time % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval* now, void* zone) {
    (void)zone;
    struct timespec time;
    clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return 0;
}

time_t time(time_t* where) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (where) *where = now.tv_sec;
    return now.tv_sec;
}
