/* Steps of a training-like loop: 300 launches of eight functions whose parameters are as long as PyTorch's, of which each third
 * has a few other bytes in each step; fills, small copies, event records; and the wait for a loss.
 *
 * Takes the number of steps; prints lines "NAME VALUE", which `cargo xtask bench steps` reads. Built with `gcc -O2 steps.c -ldl`.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define FUNCTION(name) \
    ".visible .entry " name "(.param .align 8 .b8 fields[216], .param .u64 a, .param .u64 b) { ret; }\n"

static const char MODULE[] = ".version 7.0\n.target sm_75\n.address_size 64\n" FUNCTION("f0") FUNCTION("f1")
    FUNCTION("f2") FUNCTION("f3") FUNCTION("f4") FUNCTION("f5") FUNCTION("f6") FUNCTION("f7");

enum { FUNCTIONS = 8, LAUNCHES = 300, WARM_UP = 20 };

static void *functions[FUNCTIONS], *event;
static uint64_t memory;

static void step(uint32_t number) {
    struct { uint32_t words[54]; } fields;
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        for (uint32_t w = 0; w < 54; w++) fields.words[w] = w < 20 ? i * 2654435761u + w : w;
        if (i % 3 == 0) fields.words[30] = number * 2246822519u;
        uint64_t a = memory + i * 512, b = memory + (i * 7 % LAUNCHES) * 512;
        void *parameters[] = {&fields, &a, &b};
        CALL(cuLaunchKernel, functions[i % FUNCTIONS], 1 + i % 5, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
        if (i % 30 == 0) CALL(cuMemsetD32Async, a, 0, (size_t)128, NULL);
        if (i % 60 == 0) CALL(cuEventRecord, event, NULL);
        if (i % 100 == 0) CALL(cuMemcpyHtoDAsync_v2, b, &fields, (size_t)64, NULL);
    }
    float loss;
    CALL(cuMemcpyDtoH_v2, &loss, memory, sizeof loss);
}

int main(int count, char **words) {
    uint32_t steps = count > 1 ? strtoul(words[1], NULL, 10) : 100;
    int device;
    void *context, *module;
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) die(dlerror(), 0);
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc_v2, &memory, (size_t)1 << 20);
    CALL(cuModuleLoadData, &module, MODULE);
    for (int i = 0; i < FUNCTIONS; i++) {
        char name[] = {'f', (char)('0' + i), 0};
        CALL(cuModuleGetFunction, &functions[i], module, name);
    }
    CALL(cuEventCreate, &event, 0);
    for (uint32_t i = 0; i < WARM_UP; i++) step(i);
    double begin = now(), spent = cpu();
    for (uint32_t i = 0; i < steps; i++) step(WARM_UP + i);
    printf("step_ms %.4f\n", (now() - begin) / steps * 1e3);
    printf("step_cpu_us %.4f\n", (cpu() - spent) / steps * 1e6);
    return 0;
}
