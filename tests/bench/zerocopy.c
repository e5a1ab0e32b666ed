/* What MSG_ZEROCOPY costs and saves: bytes through a TCP socket to a thread that reads them, with it and without.
 *
 * Takes the address to listen on and connect to (`127.0.0.1`) and how many MiB; prints lines "NAME VALUE", which
 * `cargo xtask bench zerocopy` reads. Built with `gcc -O2 zerocopy.c -lpthread`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/errqueue.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PIECE = 1 << 20, WINDOW = 16 };

static size_t pieces;
static uint32_t sent, completed, copied;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static double seconds(clockid_t clock) {
    struct timespec time;
    clock_gettime(clock, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void *reads(void *socket) {
    static char into[PIECE];
    size_t left = pieces * PIECE;
    while (left) {
        ssize_t count = recv(*(int *)socket, into, sizeof into, 0);
        if (count <= 0) die("recv");
        left -= count;
    }
    return NULL;
}

/* Takes what the kernel says of buffers that it is done with. */
static void complete(int socket) {
    char control[128];
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(socket, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) {
        usleep(20);
        return;
    }
    for (struct cmsghdr *part = CMSG_FIRSTHDR(&message); part; part = CMSG_NXTHDR(&message, part)) {
        struct sock_extended_err *said = (void *)CMSG_DATA(part);
        if (said->ee_origin != SO_EE_ORIGIN_ZEROCOPY) continue;
        uint32_t count = said->ee_data - said->ee_info + 1;
        completed += count;
        if (said->ee_code & SO_EE_CODE_ZEROCOPY_COPIED) copied += count;
    }
}

static void measure(const char *name, const char *address, int zero_copy) {
    struct sockaddr_in at = {.sin_family = AF_INET};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), sender = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    inet_pton(AF_INET, address, &at.sin_addr);
    if (bind(listener, (void *)&at, sizeof at) || listen(listener, 1)) die("listen");
    getsockname(listener, (void *)&at, &size);
    if (connect(sender, (void *)&at, sizeof at)) die("connect");
    int receiver = accept(listener, NULL, NULL);
    if (zero_copy && setsockopt(sender, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof on)) die("SO_ZEROCOPY");
    char *from = aligned_alloc(4096, (size_t)WINDOW * PIECE);
    memset(from, 7, (size_t)WINDOW * PIECE);
    sent = completed = copied = 0;
    double begin = seconds(CLOCK_MONOTONIC), spent = seconds(CLOCK_PROCESS_CPUTIME_ID);
    pthread_t reader;
    pthread_create(&reader, NULL, reads, &receiver);
    for (size_t piece = 0; piece < pieces; piece++) {
        char *next = from + piece % WINDOW * PIECE, *end = next + PIECE;
        while (next < end) {
            ssize_t count = send(sender, next, end - next, zero_copy ? MSG_ZEROCOPY : 0);
            if (count < 0) die("send");
            next += count;
            sent += zero_copy;
        }
        while (zero_copy && sent - completed > WINDOW / 2) complete(sender);
    }
    pthread_join(reader, NULL);
    while (completed < sent) complete(sender);
    double bytes = (double)pieces * PIECE;
    printf("%s_bytes_per_s %.0f\n", name, bytes / (seconds(CLOCK_MONOTONIC) - begin));
    printf("%s_cpu_ms_per_gb %.1f\n", name, (seconds(CLOCK_PROCESS_CPUTIME_ID) - spent) * 1e3 / bytes * 1e9);
    if (zero_copy) printf("%s_copied %.3f\n", name, sent ? (double)copied / sent : 0);
    free(from);
    close(sender), close(receiver), close(listener);
}

int main(int count, char **words) {
    if (count < 3) return fprintf(stderr, "usage: zerocopy ADDRESS MIB\n"), 2;
    pieces = strtoul(words[2], NULL, 10);
    measure("plain", words[1], 0);
    measure("zerocopy", words[1], 1);
    return 0;
}
