// wanted: ignoring return(ed)? value.*Result
#include "src/base/status.h"

overlace::base::Result<int> g() { return 1; }

int f() {
#ifdef FIXED
  return g().value();
#else
  g();
  return 0;
#endif
}
