/* What calls cost: queued calls, waiting calls and bulk copies through libcuda.so.1, each beside a plain TCP
 * connection on loopback that is measured in the same run by the same process.
 *
 * Prints lines "NAME VALUE"; `cargo xtask bench` reads them. Built with `gcc -O2 calls.c -ldl -lpthread`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "driver.h"

/* An empty kernel with one parameter, so that a launch carries something. */
static const char EMPTY[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry empty(.param .u64 p) { ret; }\n";

enum { QUEUED_CALLS = 200000, PINGS = 5000, BULK_ROUNDS = 6 };
#define BULK_BYTES ((size_t)128 << 20)

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int count) {
    qsort(values, count, sizeof *values, by_value);
    return values[count / 2];
}

static void transfer(int socket, char *bytes, size_t size, int send_it) {
    while (size > 0) {
        ssize_t done = send_it ? send(socket, bytes, size, 0) : recv(socket, bytes, size, 0);
        if (done <= 0) die("plain socket", done);
        bytes += done;
        size -= done;
    }
}

/* The other end of the plain connection: answers 16-byte pings, takes and gives bulk. */
static void serve_plain(int socket, char *bulk) {
    char word[16];
    for (;;) {
        if (recv(socket, word, sizeof word, MSG_WAITALL) != sizeof word) _exit(0);
        if (word[0] == 'p') transfer(socket, word, sizeof word, 1);
        if (word[0] == 'i') transfer(socket, bulk, BULK_BYTES, 0), transfer(socket, word, sizeof word, 1);
        if (word[0] == 'o') transfer(socket, bulk, BULK_BYTES, 1);
    }
}

static int plain_connection(char *bulk) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&address, length) || listen(listener, 1)) die("listen", 0);
    getsockname(listener, (void *)&address, &length);
    if (fork() == 0) {
        int server = accept(listener, NULL, NULL);
        setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        close(client);
        serve_plain(server, bulk);
    }
    if (connect(client, (void *)&address, length)) die("connect", 0);
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    close(listener);
    return client;
}

static void measure_queued(void *function, uint64_t memory) {
    void *parameters[] = {&memory};
    for (int i = 0; i < 1000; i++)
        CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    CALL(cuCtxSynchronize, );
    double cpu_begin = cpu(), begin = now();
    for (int i = 0; i < QUEUED_CALLS; i++)
        CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
    double cpu_spent = cpu() - cpu_begin, wall = now() - begin;
    CALL(cuCtxSynchronize, );
    printf("queued_launch_cpu_us %.4f\n", cpu_spent / QUEUED_CALLS * 1e6);
    printf("queued_launch_wall_us %.4f\n", wall / QUEUED_CALLS * 1e6);
    printf("queued_launch_done_wall_us %.4f\n", (now() - begin) / QUEUED_CALLS * 1e6);
}

static void measure_waiting(int plain) {
    static double ping[PINGS], call[PINGS];
    char word[16] = "p";
    for (int i = 0; i < PINGS; i++) {
        double begin = now();
        transfer(plain, word, sizeof word, 1);
        transfer(plain, word, sizeof word, 0);
        double middle = now();
        CALL(cuCtxSynchronize, );
        ping[i] = middle - begin;
        call[i] = now() - middle;
    }
    printf("waiting_ping_us %.3f\n", median(ping, PINGS) * 1e6);
    printf("waiting_call_us %.3f\n", median(call, PINGS) * 1e6);
}

/* What programs with little to do at a time wait for: a few bytes either way, and one kernel. */
static void measure_small(void *function, uint64_t memory) {
    static double in[PINGS], out[PINGS], kernel[PINGS];
    void *parameters[] = {&memory};
    char word[64] = "";
    for (int i = 0; i < PINGS; i++) {
        double begin = now();
        CALL(cuMemcpyHtoD_v2, memory, word, sizeof word);
        double middle = now();
        CALL(cuMemcpyDtoH_v2, word, memory, 4);
        out[i] = now() - middle;
        in[i] = middle - begin;
        begin = now();
        CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL);
        CALL(cuCtxSynchronize, );
        kernel[i] = now() - begin;
    }
    printf("small_in_us %.3f\n", median(in, PINGS) * 1e6);
    printf("small_out_us %.3f\n", median(out, PINGS) * 1e6);
    printf("launch_and_wait_us %.3f\n", median(kernel, PINGS) * 1e6);
}

static void measure_bulk(int plain, char *bulk, uint64_t memory) {
    double plain_in[BULK_ROUNDS], plain_out[BULK_ROUNDS], in[BULK_ROUNDS], out[BULK_ROUNDS];
    char word[16];
    for (int i = 0; i < BULK_ROUNDS; i++) {
        double begin = now();
        word[0] = 'i';
        transfer(plain, word, sizeof word, 1);
        transfer(plain, bulk, BULK_BYTES, 1);
        transfer(plain, word, sizeof word, 0);
        plain_in[i] = now() - begin;
        begin = now();
        CALL(cuMemcpyHtoD_v2, memory, bulk, BULK_BYTES);
        CALL(cuCtxSynchronize, );
        in[i] = now() - begin;
        begin = now();
        word[0] = 'o';
        transfer(plain, word, sizeof word, 1);
        transfer(plain, bulk, BULK_BYTES, 0);
        plain_out[i] = now() - begin;
        begin = now();
        CALL(cuMemcpyDtoH_v2, bulk, memory, BULK_BYTES);
        out[i] = now() - begin;
    }
    double gib = BULK_BYTES / 1073741824.0;
    printf("bulk_in_plain_gib_s %.3f\n", gib / median(plain_in, BULK_ROUNDS));
    printf("bulk_in_gib_s %.3f\n", gib / median(in, BULK_ROUNDS));
    printf("bulk_out_plain_gib_s %.3f\n", gib / median(plain_out, BULK_ROUNDS));
    printf("bulk_out_gib_s %.3f\n", gib / median(out, BULK_ROUNDS));
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was measured is told also if the rest hangs */
    char *bulk = malloc(BULK_BYTES);
    uint64_t state = 88172645463325252u;
    for (size_t i = 0; i < BULK_BYTES / 8; i++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        memcpy(bulk + 8 * i, &state, 8);
    }
    int plain = plain_connection(bulk);

    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (!driver) die(dlerror(), 0);
    int device;
    void *context, *module, *function;
    uint64_t memory;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc_v2, &memory, BULK_BYTES);
    CALL(cuModuleLoadData, &module, EMPTY);
    CALL(cuModuleGetFunction, &function, module, "empty");

    measure_queued(function, memory);
    measure_waiting(plain);
    measure_small(function, memory);
    measure_bulk(plain, bulk, memory);
    CALL(cuMemFree_v2, memory);
    close(plain);
    wait(NULL);
    return 0;
}
