// A shared object that adds the toy operator to the library that its process has loaded.
#include "tests/toy/operator.h"

namespace {

[[maybe_unused]] const bool kIsAdded = (overlace::spec::add_operator(overlace::toy::kOperator), true);

}  // namespace
