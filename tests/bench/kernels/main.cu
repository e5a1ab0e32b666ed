// Kernels as CUDA programmers write them, each beside the same computation in C: `suite [NAME...]`.
#include "suite.h"

int main(int argc, char **argv) {
    wanted_names(argc, argv);
    vectors();
    products();
    tensor();
    reductions();
    grids();
    sparse();
    textures();
    models();
    functions();
    return 0;
}
