#include "src/runtime/bootstrap/secret.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace overlace::runtime {

base::Status draw_random(std::span<std::byte> out) {
  while (!out.empty()) {
    const ssize_t got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return base::error(Errc::bootstrap, "bootstrap: getrandom failed: {}", std::strerror(errno));
    out = out.subspan(static_cast<size_t>(got));
  }
  return {};
}

std::string random_token() {
  Secret secret;
  draw_random(secret).or_throw();
  std::string token;
  for (const std::byte byte : secret) token += base::format("{:02x}", static_cast<unsigned>(byte));
  return token;
}

bool is_equal_secret(std::span<const std::byte> given, std::span<const std::byte> wanted) {
  if (given.size() != wanted.size()) return false;
  // NOTE: volatile, so that no compiler may stop at the first difference.
  volatile unsigned difference = 0;
  for (size_t i = 0; i < given.size(); ++i) difference = difference | static_cast<unsigned>(given[i] ^ wanted[i]);
  return difference == 0;
}

bool is_equal_secret(std::string_view given, std::string_view wanted) {
  return is_equal_secret(std::as_bytes(std::span(given.data(), given.size())),
                         std::as_bytes(std::span(wanted.data(), wanted.size())));
}

base::Status check_secret(std::string_view text) {
  const bool is_printable = std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c <= '~'; });
  if (text.size() >= kMinSecret && text.size() <= kMaxSecret && is_printable) return {};
  return base::invalid_argument(
      "OVERLACE_SECRET has {} characters{}, wanted {} to {} printable ones without blanks, as `openssl rand -hex 32` "
      "gives",
      text.size(), is_printable ? "" : ", not all of them printable", kMinSecret, kMaxSecret);
}

}  // namespace overlace::runtime
