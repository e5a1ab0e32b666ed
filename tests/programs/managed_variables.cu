// Variables that program and kernels use by one name. Built by nvcc with default options.

#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t error = (call);                                                              \
        if (error != cudaSuccess) {                                                              \
            std::printf("%s:%d: %s\n", __FILE__, __LINE__, cudaGetErrorString(error));           \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

#define EXPECT(condition)                                                                        \
    do {                                                                                         \
        if (!(condition)) {                                                                      \
            std::printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition);            \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

struct Pair {
    int number;
    double value;
};

__managed__ int counter = 5;
__managed__ int table[100000];
__managed__ Pair pair = {3, 0.5};
__device__ int apart = 7;

// More than one block of code uses them.
__managed__ int *chosen;

__global__ void bump() {
    counter += 1;
    pair.value *= 2;
    apart += 1;
}

__global__ void fill(int add) {
    int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index < 100000) table[index] += index + add;
}

__global__ void write_chosen(int value) { *chosen = value; }

int main() {
    EXPECT(counter == 5 && pair.number == 3 && pair.value == 0.5 && table[99999] == 0);
    counter = 41;
    table[500] = 1000;
    bump<<<1, 1>>>();
    fill<<<(100000 + 255) / 256, 256>>>(7);
    CHECK(cudaDeviceSynchronize());
    EXPECT(counter == 42 && pair.number == 3 && pair.value == 1);
    EXPECT(table[0] == 7 && table[500] == 1507 && table[99999] == 100006);

    // By the names of the runtime, too.
    int value = 0;
    CHECK(cudaMemcpyFromSymbol(&value, counter, sizeof value));
    EXPECT(value == 42);
    value = 50;
    CHECK(cudaMemcpyToSymbol(counter, &value, sizeof value));
    EXPECT(counter == 50);
    CHECK(cudaMemcpyFromSymbol(&value, apart, sizeof value));
    EXPECT(value == 8);
    void *address = nullptr;
    CHECK(cudaGetSymbolAddress(&address, counter));
    EXPECT(address == &counter);
    cudaPointerAttributes attributes;
    CHECK(cudaPointerGetAttributes(&attributes, &table[10]));
    EXPECT(attributes.type == cudaMemoryTypeManaged);
    EXPECT(attributes.devicePointer == &table[10] && attributes.hostPointer == &table[10]);

    // One that points to another.
    chosen = &table[7];
    write_chosen<<<1, 1>>>(-1);
    CHECK(cudaDeviceSynchronize());
    EXPECT(table[7] == -1);
    CHECK(cudaMemcpy(&value, &table[7], sizeof value, cudaMemcpyDefault));
    EXPECT(value == -1);
    std::printf("PASS\n");
    return 0;
}
