/* Copies data of several kinds to the device and back, compares them, and says how long that took.
 *
 * Takes the number of bytes of a copy; prints lines "NAME VALUE", which `cargo xtask bench packed` reads. Built with
 * `gcc -O2 kinds.c -ldl -lm`.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static uint64_t state = 1;

static uint32_t noise(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

/* Numbers as networks begin with: normal, with a deviation of 0.02. */
static float normal(void) {
    double radius = sqrt(-2.0 * log((noise() + 1.0) / 4294967297.0));
    return (float)(0.02 * radius * cos(6.283185307179586 * noise() / 4294967296.0));
}

static void make_noise(void *to, size_t bytes) {
    for (size_t i = 0; i < bytes / 4; i++) ((uint32_t *)to)[i] = noise();
}

static void make_weights(void *to, size_t bytes) {
    for (size_t i = 0; i < bytes / 4; i++) ((float *)to)[i] = normal();
}

/* Activations: what is below zero is zero, in runs as of channels that are off. */
static void make_activations(void *to, size_t bytes) {
    for (size_t i = 0; i < bytes / 4; i++) ((float *)to)[i] = (i / 64 * 2654435761u >> 16) % 2 ? fabsf(normal()) : 0;
}

/* Numbers of tokens out of 50,257, few of them often, as 64-bit integers. */
static void make_tokens(void *to, size_t bytes) {
    for (size_t i = 0; i < bytes / 8; i++) ((uint64_t *)to)[i] = (uint64_t)(50257 * pow(noise() / 4294967296.0, 4));
}

/* A picture: each byte near the one before it. */
static void make_pixels(void *to, size_t bytes) {
    uint8_t value = 128;
    for (size_t i = 0; i < bytes; i++) ((uint8_t *)to)[i] = value += noise() % 16 == 0 ? (int)(noise() % 5) - 2 : 0;
}

static void make_zeroes(void *to, size_t bytes) { memset(to, 0, bytes); }

static const struct { const char *name; void (*make)(void *, size_t); } KINDS[] = {
    {"noise", make_noise}, {"weights", make_weights}, {"activations", make_activations},
    {"tokens", make_tokens}, {"pixels", make_pixels}, {"zeroes", make_zeroes},
};

int main(int count, char **words) {
    size_t bytes = count > 1 ? strtoul(words[1], NULL, 10) : 1 << 24;
    void *context, *there = malloc(bytes), *back = malloc(bytes);
    int device;
    uint64_t memory;
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) die(dlerror(), 0);
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc_v2, &memory, bytes);
    for (size_t kind = 0; kind < sizeof KINDS / sizeof *KINDS; kind++) {
        /* The first copies say how fast the link is. */
        make_noise(there, bytes);
        CALL(cuMemcpyHtoD_v2, memory, there, bytes);
        CALL(cuMemcpyDtoH_v2, back, memory, bytes);
        KINDS[kind].make(there, bytes);
        double begin = now();
        CALL(cuMemcpyHtoD_v2, memory, there, bytes);
        CALL(cuCtxSynchronize);
        double middle = now();
        CALL(cuMemcpyDtoH_v2, back, memory, bytes);
        double end = now();
        if (memcmp(there, back, bytes)) die("other bytes came back", 0);
        printf("%s_htod %.0f\n%s_dtoh %.0f\n", KINDS[kind].name, bytes / (middle - begin), KINDS[kind].name,
               bytes / (end - middle));
    }
    return 0;
}
