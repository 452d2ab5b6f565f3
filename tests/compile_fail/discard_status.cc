// wanted: ignoring return(ed)? value.*Status
// Inside the library an error is a value; it is handled or passed on.
#include "src/base/status.h"

overlace::base::Status g() { return overlace::base::invalid_argument("x is {}", 1); }

overlace::base::Status f() {
#ifdef FIXED
  OVERLACE_TRY(g());
#else
  g();
#endif
  return {};
}
