// What the files of this program share.

#pragma once

/// Made in one file, called in another: the table of its virtual functions is that of the file that made it.
struct Shape {
    __device__ virtual int area() const = 0;
    __device__ virtual int corners() const { return 0; }
    __device__ virtual ~Shape() {}
};

struct Square : Shape {
    int side;
    __device__ explicit Square(int side) : side(side) {}
    __device__ int area() const override { return side * side; }
    __device__ int corners() const override { return 4; }
};

/// Defined in shapes.cu.
__device__ Shape* make_shape(int kind, int size);
__device__ int measure(const Shape* shape);

/// Each file that calls it has a copy, and all mean the same variable.
inline __device__ int& visits() {
    static __device__ int count = 100;
    return count;
}

template <typename T>
__device__ __noinline__ T twice(T value) {
    return value + value;
}

using Operation = int (*)(int, int);
/// Defined in operations.cu.
extern __device__ Operation operations[4];
extern __constant__ int weights[4];
extern __device__ int calls;
__device__ int weighted(int index, int value);
