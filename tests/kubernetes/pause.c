/* What holds the namespaces of a pod in a test cluster: it waits until it is killed. */
#include <unistd.h>

int main(void) {
    for (;;) pause();
}
