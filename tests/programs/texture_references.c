/* Texture and surface references, as programs had them before CUDA 5: linear memory, rows and arrays are bound to variables of a
 * module, and kernels read them. Compares what is read under each setting, what is said of each setting, and the errors. Needs
 * nothing but `libcuda.so.1`; built with `gcc texture_references.c -ldl`.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_FOUND = 500, INVALID_HANDLE = 400 };
enum { U8 = 1, U32 = 3, FLOAT = 32 };
enum { WRAP = 0, CLAMP = 1, BORDER = 3, POINT = 0, LINEAR = 1 };
enum { OVERRIDE_FORMAT = 1, READ_AS_INTEGER = 1, NORMALIZED = 2, SURFACE = 2 };

static const char PTX[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .global .texref line;\n.visible .global .texref plane;\n.visible .global .surfref sheet;\n"
    ".visible .global .align 4 .b8 memory[4];\n"
    ".visible .entry read_line(.param .u64 to) {\n"
    ".reg .b32 %r<2>; .reg .b64 %rd<4>; .reg .f32 %f<5>;\n"
    "ld.param.u64 %rd1, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.u64 %rd3, %rd1, %rd2;\n"
    "tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [line, {%r1}]; st.global.f32 [%rd3], %f1; ret; }\n"
    ".visible .entry read_plane(.param .u64 to, .param .f32 x, .param .f32 y) {\n"
    ".reg .b64 %rd<2>; .reg .f32 %f<7>;\n"
    "ld.param.u64 %rd1, [to]; ld.param.f32 %f1, [x]; ld.param.f32 %f2, [y];\n"
    "tex.2d.v4.f32.f32 {%f3, %f4, %f5, %f6}, [plane, {%f1, %f2}]; st.global.f32 [%rd1], %f3; ret; }\n"
    ".visible .entry write_sheet() {\n"
    ".reg .b32 %r<5>;\n"
    "mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; shl.b32 %r3, %r1, 2; mad.lo.u32 %r4, %r2, 10, %r1;\n"
    "sust.b.2d.b32.trap [sheet, {%r3, %r2}], {%r4}; ret; }\n";

typedef struct {
    size_t width, height;
    uint32_t format, channels;
} Flat;

typedef struct {
    size_t width, height, depth;
    uint32_t format, channels, flags;
} Shape;

static void *driver;
static uint64_t result;
static void *read_plane;

static void *found(const char *name) {
    void *entry = dlsym(driver, name);
    if (!entry) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return entry;
}

static void expect(int line, const char *name, long code, long expected) {
    if (code == expected) return;
    fprintf(stderr, "line %d: %s: %ld, not %ld\n", line, name, code, expected);
    exit(1);
}

#define GIVES(expected, name, ...) expect(__LINE__, #name, ((int (*)())found(#name))(__VA_ARGS__), expected)
#define CALL(name, ...) GIVES(SUCCESS, name, __VA_ARGS__)
#define IS(value, expected) expect(__LINE__, #value, (long)(value), (long)(expected))

/* A float is no argument of a function without a prototype. */
static int set_bias(void *texture, float bias) {
    return ((int (*)(void *, float))found("cuTexRefSetMipmapLevelBias"))(texture, bias);
}

static int set_clamp(void *texture, float least, float most) {
    return ((int (*)(void *, float, float))found("cuTexRefSetMipmapLevelClamp"))(texture, least, most);
}

static void launch(void *kernel, int x, int y, void **parameters) {
    CALL(cuLaunchKernel, kernel, 1, 1, 1, x, y, 1, 0, NULL, parameters, NULL);
}

static void line_reads(int line, uint64_t from, const float *expected, int count) {
    float values[8];
    CALL(cuMemcpyDtoH_v2, values, from, (size_t)count * sizeof *values);
    for (int i = 0; i < count; i++) {
        if (values[i] == expected[i]) continue;
        fprintf(stderr, "line %d: element %d is %f, not %f\n", line, i, values[i], expected[i]);
        exit(1);
    }
}

static void plane_reads(int line, float x, float y, float expected) {
    void *parameters[] = {&result, &x, &y};
    launch(read_plane, 1, 1, parameters);
    line_reads(line, result, &expected, 1);
}

#define LINE(from, count, ...) line_reads(__LINE__, from, (float[]){__VA_ARGS__}, count)
#define PLANE(x, y, expected) plane_reads(__LINE__, x, y, expected)

static uint64_t upload(const void *bytes, size_t size) {
    uint64_t memory;
    CALL(cuMemAlloc_v2, &memory, size);
    CALL(cuMemcpyHtoD_v2, memory, bytes, size);
    return memory;
}

/* Launches that follow each other without waiting each read what was bound when they were made. */
static void linear_memory(void *module, void *line) {
    const float numbers[] = {1, 2, 3, 4}, others[] = {5, 6, 7, 8};
    uint64_t first = upload(numbers, sizeof numbers), second = upload(others, sizeof others);
    uint64_t to[2], at;
    size_t offset = 99;
    void *kernel, *parameters[2][1] = {{&to[0]}, {&to[1]}};
    CALL(cuModuleGetFunction, &kernel, module, "read_line");
    CALL(cuMemAlloc_v2, &to[0], sizeof numbers);
    CALL(cuMemAlloc_v2, &to[1], sizeof numbers);
    CALL(cuTexRefSetFormat, line, FLOAT, 1);
    CALL(cuTexRefSetAddress_v2, &offset, line, first, sizeof numbers);
    IS(offset, 0);
    CALL(cuParamSetTexRef, kernel, -1, line);
    GIVES(INVALID_VALUE, cuParamSetTexRef, kernel, 0, line);
    launch(kernel, 4, 1, parameters[0]);
    CALL(cuTexRefSetAddress_v2, NULL, line, second, sizeof others);
    launch(kernel, 4, 1, parameters[1]);
    LINE(to[0], 4, 1, 2, 3, 4);
    LINE(to[1], 4, 5, 6, 7, 8);
    /* A texture begins at an aligned address, and the program has to know how far before its memory that is. */
    CALL(cuTexRefSetAddress_v2, &offset, line, first + 8, 8);
    CALL(cuTexRefGetAddress_v2, &at, line);
    IS(offset, 8);
    IS(at, first);
    GIVES(INVALID_VALUE, cuTexRefSetAddress_v2, NULL, line, first + 8, 8);
    GIVES(INVALID_VALUE, cuTexRefSetAddress_v2, &offset, line, (uint64_t)1 << 60, 8);
    CALL(cuTexRefSetAddress_v2, NULL, line, 0, 0);
    GIVES(INVALID_VALUE, cuTexRefGetAddress_v2, &at, line);
    GIVES(INVALID_VALUE, cuTexRefSetFormat, line, FLOAT, 3);
}

static void rows(void *plane) {
    uint8_t bytes[64] = {0, 255, [32] = 51, 102};
    uint64_t memory = upload(bytes, sizeof bytes);
    Flat flat = {2, 2, U8, 1};
    CALL(cuTexRefSetAddress2D_v2, plane, &flat, memory, 32);
    CALL(cuTexRefSetAddress2D_v3, plane, &flat, memory, (size_t)32);
    GIVES(INVALID_VALUE, cuTexRefSetFormat, plane, FLOAT, 1);
    PLANE(1, 0, 1.0f);
    PLANE(0, 1, 0.2f);
    CALL(cuTexRefSetFilterMode, plane, LINEAR);
    PLANE(1, 0.5f, 0.5f);
    CALL(cuTexRefSetFilterMode, plane, POINT);
    CALL(cuTexRefSetFlags, plane, NORMALIZED);
    CALL(cuTexRefSetAddressMode, plane, 0, WRAP);
    PLANE(1.75f, 0.75f, 0.4f);
    float color[4] = {0.75f, 1, 2, 3}, read[4] = {0};
    CALL(cuTexRefSetBorderColor, plane, color);
    CALL(cuTexRefGetBorderColor, read, plane);
    IS(memcmp(color, read, sizeof color), 0);
    CALL(cuTexRefSetAddressMode, plane, 1, BORDER);
    PLANE(0.25f, 3, 0.75f);
    /* 51 as it is: the bits of an integer. */
    CALL(cuTexRefSetFlags, plane, READ_AS_INTEGER);
    uint32_t integer = 51;
    float bits;
    memcpy(&bits, &integer, sizeof bits);
    PLANE(0, 1, bits);
    GIVES(INVALID_VALUE, cuTexRefSetAddress2D_v3, plane, &flat, memory + 4, (size_t)32);
    GIVES(INVALID_VALUE, cuTexRefSetAddress2D_v3, plane, &flat, memory, (size_t)33);
    GIVES(INVALID_VALUE, cuTexRefSetAddress2D_v3, plane, &flat, (uint64_t)1 << 60, (size_t)32);
    GIVES(INVALID_VALUE, cuTexRefSetAddress2D_v3, plane, NULL, memory, (size_t)32);
    GIVES(INVALID_VALUE, cuTexRefSetFlags, plane, 1u << 30);
    GIVES(INVALID_VALUE, cuTexRefSetAddressMode, plane, 3, CLAMP);
    GIVES(INVALID_VALUE, cuTexRefSetFilterMode, plane, 9);
}

/* A kernel writes an array through a surface reference, and another reads it through a texture reference. */
static void arrays(void *module, void *plane, void *sheet) {
    Shape shape = {4, 2, 0, U32, 1, SURFACE};
    void *array, *plain, *levels, *bound, *kernel;
    uint32_t format, expected = 12;
    int channels;
    float bits;
    CALL(cuArray3DCreate_v2, &array, &shape);
    CALL(cuMipmappedArrayCreate, &levels, &shape, 2);
    shape.flags = 0;
    CALL(cuArray3DCreate_v2, &plain, &shape);
    GIVES(INVALID_VALUE, cuSurfRefGetArray, &bound, sheet);
    GIVES(INVALID_VALUE, cuSurfRefSetArray, sheet, plain, 0);
    GIVES(INVALID_VALUE, cuSurfRefSetArray, sheet, array, 1);
    CALL(cuSurfRefSetArray, sheet, array, 0);
    CALL(cuSurfRefGetArray, &bound, sheet);
    IS((intptr_t)bound, (intptr_t)array);
    CALL(cuModuleGetFunction, &kernel, module, "write_sheet");
    launch(kernel, 4, 2, NULL);
    CALL(cuTexRefSetFlags, plane, 0);
    GIVES(INVALID_VALUE, cuTexRefGetArray, &bound, plane);
    GIVES(INVALID_VALUE, cuTexRefSetArray, plane, array, 0);
    CALL(cuTexRefSetArray, plane, array, OVERRIDE_FORMAT);
    CALL(cuTexRefGetArray, &bound, plane);
    IS((intptr_t)bound, (intptr_t)array);
    CALL(cuTexRefGetFormat, &format, &channels, plane);
    IS(format, U32);
    IS(channels, 1);
    memcpy(&bits, &expected, sizeof bits);
    PLANE(2, 1, bits);
    CALL(cuTexRefSetMipmappedArray, plane, levels, OVERRIDE_FORMAT);
    CALL(cuTexRefGetMipmappedArray, &bound, plane);
    IS((intptr_t)bound, (intptr_t)levels);
    GIVES(INVALID_VALUE, cuTexRefGetArray, &bound, plane);
    CALL(cuMipmappedArrayDestroy, levels);
    GIVES(INVALID_VALUE, cuTexRefGetMipmappedArray, &bound, plane);
    GIVES(INVALID_HANDLE, cuTexRefSetArray, plane, levels, OVERRIDE_FORMAT);
    CALL(cuArrayDestroy, array);
    CALL(cuArrayDestroy, plain);
}

/* What is set is what is said, of a reference that the program makes. */
static void settings(void *kernel) {
    void *own, *left;
    int number;
    uint32_t word;
    float least, most;
    CALL(cuTexRefCreate, &own);
    CALL(cuTexRefSetAddressMode, own, 2, BORDER);
    CALL(cuTexRefGetAddressMode, &word, own, 2);
    IS(word, BORDER);
    CALL(cuTexRefSetFilterMode, own, LINEAR);
    CALL(cuTexRefGetFilterMode, &word, own);
    IS(word, LINEAR);
    CALL(cuTexRefSetMipmapFilterMode, own, LINEAR);
    CALL(cuTexRefGetMipmapFilterMode, &word, own);
    IS(word, LINEAR);
    IS(set_bias(own, 1.5f), SUCCESS);
    CALL(cuTexRefGetMipmapLevelBias, &least, own);
    IS(least * 2, 3);
    IS(set_clamp(own, 1, 4), SUCCESS);
    CALL(cuTexRefGetMipmapLevelClamp, &least, &most, own);
    IS(least, 1);
    IS(most, 4);
    CALL(cuTexRefSetMaxAnisotropy, own, 8);
    CALL(cuTexRefGetMaxAnisotropy, &number, own);
    IS(number, 8);
    CALL(cuTexRefSetFlags, own, NORMALIZED | READ_AS_INTEGER);
    CALL(cuTexRefGetFlags, &word, own);
    IS(word, NORMALIZED | READ_AS_INTEGER);
    GIVES(INVALID_VALUE, cuParamSetTexRef, kernel, -1, own);
    CALL(cuTexRefDestroy, own);
    GIVES(INVALID_HANDLE, cuTexRefGetFlags, &word, own);
    GIVES(INVALID_HANDLE, cuTexRefDestroy, own);
    GIVES(INVALID_VALUE, cuTexRefCreate, NULL);
    /* This one goes with its context. */
    CALL(cuTexRefCreate, &left);
}

int main(void) {
    int device;
    void *context, *module, *line, *plane, *again, *sheet, *none, *entry;
    if (!(driver = dlopen("libcuda.so.1", RTLD_NOW))) return 1;
    CALL(cuInit, 0);
    CALL(cuDeviceGet, &device, 0);
    CALL(cuCtxCreate_v2, &context, 0, device);
    CALL(cuModuleLoadData, &module, PTX);
    CALL(cuModuleGetFunction, &read_plane, module, "read_plane");
    CALL(cuMemAlloc_v2, &result, (size_t)64);
    CALL(cuModuleGetTexRef, &line, module, "line");
    CALL(cuModuleGetTexRef, &plane, module, "plane");
    CALL(cuModuleGetTexRef, &again, module, "plane");
    CALL(cuModuleGetSurfRef, &sheet, module, "sheet");
    IS((intptr_t)again, (intptr_t)plane);
    GIVES(NOT_FOUND, cuModuleGetTexRef, &none, module, "sheet");
    GIVES(NOT_FOUND, cuModuleGetSurfRef, &none, module, "memory");
    GIVES(NOT_FOUND, cuModuleGetTexRef, &none, module, "nothing");
    GIVES(INVALID_HANDLE, cuModuleGetTexRef, &none, line, "line");
    GIVES(INVALID_HANDLE, cuTexRefDestroy, line);
    CALL(cuGetProcAddress, "cuTexRefSetAddress2D", &entry, 12090, (uint64_t)0);
    IS((intptr_t)entry, (intptr_t)found("cuTexRefSetAddress2D_v3"));
    linear_memory(module, line);
    rows(plane);
    arrays(module, plane, sheet);
    settings(read_plane);
    CALL(cuModuleUnload, module);
    GIVES(INVALID_HANDLE, cuTexRefGetFlags, &device, plane);
    GIVES(INVALID_HANDLE, cuSurfRefSetArray, sheet, sheet, 0);
    CALL(cuCtxDestroy_v2, context);
    printf("PASS\n");
    return 0;
}
