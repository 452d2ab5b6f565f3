// wanted: use of deleted function.*Runtime
// A runtime owns what peers map: it is moved, never copied.
#include <utility>

#include "overlace/runtime.h"

overlace::Runtime f(overlace::Runtime& runtime) {
#ifdef FIXED
  return std::move(runtime);
#else
  return runtime;
#endif
}
