/* A disk that keeps only what was synced.  LD_PRELOAD; ROOT is what it watches, DISK where it keeps a copy.

   fsync of a file   -> DISK/files/KEY      its bytes at this moment
   fsync of a folder -> DISK/folders/KEY    a line "f KEY name" or "d KEY name" for each of its entries

   KEY is the inode's number and time of birth, because numbers are used again.  harness.py puts a tree together from
   the copies: what a power cut would leave. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void key_of(int at, const char *name, int flags, char *key, unsigned *mode) {
    struct statx x = {0};
    statx(at, name, flags | AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS | STATX_BTIME, &x);
    sprintf(key, "%llu-%lld.%u", (unsigned long long)x.stx_ino, (long long)x.stx_btime.tv_sec, x.stx_btime.tv_nsec);
    *mode = x.stx_mode;
}

void key_of_path(const char *path, char *key) {
    unsigned mode;
    key_of(AT_FDCWD, path, 0, key, &mode);
}

static void must(int good, const char *what) {
    if (!good) {
        perror(what);
        abort();
    }
}

static void keep_file(const char *path, FILE *copy) {
    char buffer[1 << 16];
    int from = open(path, O_RDONLY | O_CLOEXEC);
    must(from >= 0, path);
    for (ssize_t count; (count = read(from, buffer, sizeof buffer)) > 0;)
        must(fwrite(buffer, 1, count, copy) == (size_t)count, "write");
    close(from);
}

static void keep_folder(const char *path, FILE *copy) {
    DIR *folder = opendir(path);
    must(folder != NULL, path);
    for (struct dirent *entry; (entry = readdir(folder));) {
        char key[64];
        unsigned mode;
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        key_of(dirfd(folder), entry->d_name, 0, key, &mode);
        if (S_ISDIR(mode) || S_ISREG(mode))
            fprintf(copy, "%c %s %s\n", S_ISDIR(mode) ? 'd' : 'f', key, entry->d_name);
    }
    closedir(folder);
}

static void keep(int fd) {
    char link[64], path[PATH_MAX], key[64], aside[PATH_MAX], place[PATH_MAX];
    unsigned mode;
    sprintf(link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = 0;
    if (strncmp(path, ROOT, strlen(ROOT)))
        return;
    key_of(fd, "", AT_EMPTY_PATH, key, &mode);
    sprintf(place, "%s/%s/%s", DISK, S_ISDIR(mode) ? "folders" : "files", key);
    sprintf(aside, "%s/aside-%d-%d", DISK, getpid(), gettid());
    FILE *copy = fopen(aside, "we");
    must(copy != NULL, aside);
    if (S_ISDIR(mode))
        keep_folder(path, copy);
    else
        keep_file(link, copy);
    must(fclose(copy) == 0, aside);
    must(rename(aside, place) == 0, place);
}

static int through(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    int result = real(fd);
    if (result == 0)
        keep(fd);
    return result;
}

int fsync(int fd) { return through("fsync", fd); }
int fdatasync(int fd) { return through("fdatasync", fd); }
