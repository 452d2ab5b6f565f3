#include "tests/support/headers.h"

int main() { return 0; }
