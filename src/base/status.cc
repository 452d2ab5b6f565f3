#include "src/base/status.h"

#include <exception>
#include <new>

namespace overlace::base {

Status status_of_current_exception() {
  try {
    throw;
  } catch (const Error& e) {
    return Status(e.code(), e.what());
  } catch (const std::bad_alloc&) {
    return Status(Errc::out_of_memory, "out of memory");
  } catch (const std::exception& e) {
    return Status(Errc::internal, e.what());
  } catch (...) {
    return Status(Errc::internal, "an exception of a foreign type");
  }
}

void assert_failed(const char* condition, const char* file, int line) {
  throw_error(Errc::internal, format("internal error: {} does not hold at {}:{}", condition, file, line));
}

}  // namespace overlace::base
