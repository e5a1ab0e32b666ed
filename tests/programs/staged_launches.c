/* Launches as CUDA 3 has them: a function is given the shape of its blocks, its shared memory and its parameters one by one, then a
 * grid. Compares what kernels write, and each error that is defined. Needs nothing but `libcuda.so.1`; built with
 * `gcc staged_launches.c -ldl`.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_HANDLE = 400 };
enum { WIDTH = 3, HEIGHT = 2, X = 5, Y = 4, THREADS = WIDTH * HEIGHT * X * Y };
/* Where the parameters of `fill` lie, and where they end. */
enum { TO = 0, SCALE = 8, BIAS = 12, PAIR = 16, END = 32, PARAMETERS_MAX = 32764 };

static const char PTX[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry fill(.param .u64 to, .param .f32 scale, .param .u32 bias, .param .align 8 .b8 pair[16]) {\n"
    ".reg .b32 %r<16>; .reg .b64 %rd<8>; .reg .f32 %f<8>;\n"
    "mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ctaid.y; mov.u32 %r3, %nctaid.x;\n"
    "mad.lo.u32 %r4, %r2, %r3, %r1;\n"
    "mov.u32 %r5, %ntid.x; mov.u32 %r6, %ntid.y; mov.u32 %r7, %tid.x; mov.u32 %r8, %tid.y;\n"
    "mul.lo.u32 %r9, %r5, %r6; mul.lo.u32 %r9, %r4, %r9; mad.lo.u32 %r9, %r8, %r5, %r9; add.u32 %r9, %r9, %r7;\n"
    "ld.param.u64 %rd1, [to]; ld.param.f32 %f1, [scale]; ld.param.u32 %r10, [bias]; ld.param.u64 %rd2, [pair + 8];\n"
    "cvt.rn.f32.u32 %f2, %r9; cvt.rn.f32.u32 %f3, %r10; fma.rn.f32 %f4, %f1, %f2, %f3;\n"
    "cvt.rn.f32.u64 %f5, %rd2; add.f32 %f4, %f4, %f5;\n"
    "mul.wide.u32 %rd3, %r9, 4; add.u64 %rd4, %rd1, %rd3; st.global.f32 [%rd4], %f4; ret; }\n"
    ".visible .entry size(.param .u64 to) {\n"
    ".reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
    "ld.param.u64 %rd1, [to]; mov.u32 %r1, %dynamic_smem_size; st.global.u32 [%rd1], %r1; ret; }\n";

static void *driver;

static void *found(const char *name) {
    void *entry = dlsym(driver, name);
    if (!entry) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return entry;
}

static void expect(int line, const char *name, int code, int expected) {
    if (code == expected) return;
    fprintf(stderr, "line %d: %s: %d, not %d\n", line, name, code, expected);
    exit(1);
}

/* A float is no argument of a function without a prototype. */
typedef int SetFloat(void *, int, float);
#define GIVES(expected, name, ...) expect(__LINE__, #name, ((int (*)())found(#name))(__VA_ARGS__), expected)
#define CALL(name, ...) GIVES(SUCCESS, name, __VA_ARGS__)

static void compare(const char *what, uint64_t device, int count, float scale, float bias) {
    float values[THREADS];
    CALL(cuMemcpyDtoH_v2, values, device, (size_t)count * sizeof *values);
    for (int i = 0; i < count; i++) {
        if (values[i] != scale * i + bias) {
            fprintf(stderr, "%s: value %d is %f, not %f\n", what, i, values[i], scale * i + bias);
            exit(1);
        }
    }
}

int main(void) {
    int device;
    void *context, *module, *fill, *size, *stream;
    uint64_t memory;
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) return 1;
    GIVES(NOT_INITIALIZED, cuFuncSetBlockShape, NULL, 1, 1, 1);
    GIVES(NOT_INITIALIZED, cuLaunch, NULL);
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, device);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, PTX);
    CALL(cuModuleGetFunction, &fill, module, "fill");
    CALL(cuModuleGetFunction, &size, module, "size");
    CALL(cuStreamCreate, &stream, 0);
    CALL(cuMemAlloc_v2, &memory, (size_t)THREADS * sizeof(float));

    /* A function without a shape has no blocks. */
    GIVES(INVALID_VALUE, cuLaunch, fill);
    GIVES(INVALID_VALUE, cuFuncSetBlockShape, fill, X, 0, 1);
    GIVES(INVALID_VALUE, cuFuncSetBlockShape, fill, X, Y, -1);
    GIVES(INVALID_HANDLE, cuFuncSetBlockShape, context, X, Y, 1);
    CALL(cuFuncSetBlockShape, fill, X, Y, 1);

    uint64_t pair[2] = {~0ull, 1000};
    CALL(cuParamSetv, fill, TO, &memory, (unsigned)sizeof memory);
    SetFloat *set = (SetFloat *)found("cuParamSetf");
    expect(__LINE__, "cuParamSetf", set(fill, SCALE, 0.5f), SUCCESS);
    CALL(cuParamSeti, fill, BIAS, 7);
    CALL(cuParamSetv, fill, PAIR, pair, (unsigned)sizeof pair);
    CALL(cuParamSetSize, fill, END);
    GIVES(INVALID_VALUE, cuParamSeti, fill, -4, 1);
    GIVES(INVALID_VALUE, cuParamSeti, fill, PARAMETERS_MAX - 3, 1);
    expect(__LINE__, "cuParamSetf", set(fill, PARAMETERS_MAX, 1), INVALID_VALUE);
    GIVES(INVALID_VALUE, cuParamSetv, fill, 0, NULL, 4);
    GIVES(INVALID_VALUE, cuParamSetv, fill, 0, pair, PARAMETERS_MAX + 1);
    GIVES(INVALID_VALUE, cuParamSetSize, fill, PARAMETERS_MAX + 1);
    GIVES(INVALID_HANDLE, cuParamSeti, NULL, 0, 1);

    GIVES(INVALID_VALUE, cuLaunchGrid, fill, 0, 1);
    GIVES(INVALID_VALUE, cuLaunchGrid, fill, 1, -1);
    CALL(cuLaunch, fill);
    compare("one block", memory, X * Y, 0.5f, 1007);
    CALL(cuLaunchGrid, fill, WIDTH, HEIGHT);
    compare("a grid", memory, THREADS, 0.5f, 1007);

    /* What was set stays until it is set anew. */
    CALL(cuParamSeti, fill, BIAS, 9);
    CALL(cuLaunchGridAsync, fill, WIDTH, HEIGHT, stream);
    CALL(cuStreamSynchronize, stream);
    compare("a grid in a stream", memory, THREADS, 0.5f, 1009);

    /* A function's settings are its own. */
    CALL(cuFuncSetBlockShape, size, 1, 1, 1);
    CALL(cuFuncSetSharedSize, size, 4096);
    CALL(cuParamSetv, size, 0, &memory, (unsigned)sizeof memory);
    CALL(cuParamSetSize, size, (unsigned)sizeof memory);
    CALL(cuLaunch, size);
    uint32_t bytes = 0;
    CALL(cuMemcpyDtoH_v2, &bytes, memory, sizeof bytes);
    expect(__LINE__, "shared memory", (int)bytes, 4096);
    CALL(cuFuncSetSharedSize, size, 1u << 30);
    GIVES(INVALID_VALUE, cuLaunch, size);
    CALL(cuLaunchGrid, fill, WIDTH, HEIGHT);
    compare("a grid after another function's", memory, THREADS, 0.5f, 1009);

    CALL(cuMemFree_v2, memory);
    CALL(cuModuleUnload, module);
    GIVES(INVALID_HANDLE, cuParamSetSize, fill, END);
    printf("PASS\n");
    return 0;
}
