#include "src/base/format.h"

#include <fmt/args.h>
#include <fmt/format.h>

#include "overlace/error.h"

namespace overlace::base {

std::string format_args(std::string_view text, const FormatArg* args, size_t count) {
  fmt::dynamic_format_arg_store<fmt::format_context> store;
  store.reserve(count, 0);
  for (size_t i = 0; i < count; ++i) std::visit([&](const auto& value) { store.push_back(value); }, args[i]);
  try {
    return fmt::vformat(fmt::string_view(text.data(), text.size()), store);
  } catch (const fmt::format_error& e) {
    throw_error(Errc::internal, "internal error: format text \"" + std::string(text) + "\": " + e.what());
  }
}

}  // namespace overlace::base
