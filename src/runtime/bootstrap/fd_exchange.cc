#include "src/runtime/bootstrap/fd_exchange.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "src/runtime/bootstrap/socket.h"
#include "src/runtime/phases.h"

namespace overlace::runtime {
namespace {

// Messages of one peer and tag arrive in order, so that equal numbers of consecutive exchanges cannot be confused.
constexpr Tag kDescriptor{0, 2, 0}, kReceipt{0, 3, 0};

std::span<const std::byte> bytes_of(const int& value) { return std::as_bytes(std::span(&value, 1)); }

/// The number that the sender put into its message.
base::Status check_number(const Message& message, int wanted) {
  int number = -1;
  if (message.bytes.size() == sizeof number) std::memcpy(&number, message.bytes.data(), sizeof number);
  if (number == wanted) return {};
  return base::error(Errc::bootstrap, "descriptor exchange: got number {}, wanted {}", number, wanted);
}

}  // namespace

base::Result<std::vector<int>> exchange_fds(Control& control, std::span<const int> members, int mine,
                                            int64_t timeout_ms) {
  const int self = control.rank();
  for (const int peer : members)
    if (peer != self) OVERLACE_TRY(control.send(peer, kDescriptor, bytes_of(self), mine));
  come_past(Phase::descriptors, self);
  std::vector<UniqueFd> all;
  for (const int peer : members) {
    if (peer == self) {
      all.emplace_back(::fcntl(mine, F_DUPFD_CLOEXEC, 0));
      if (!all.back()) return base::error(Errc::io, "descriptor exchange: cannot duplicate: {}", std::strerror(errno));
      continue;
    }
    base::Result<Message> message = control.receive(peer, kDescriptor, timeout_ms, "descriptor exchange");
    if (!message.ok()) return message.status();
    all.emplace_back(message->fd);
    OVERLACE_TRY(check_number(*message, peer));
    if (message->fd < 0) return base::error(Errc::bootstrap, "descriptor exchange: rank {} sent none", peer);
    OVERLACE_TRY(control.send(peer, kReceipt, bytes_of(self)));
  }
  for (const int peer : members) {
    if (peer == self) continue;
    base::Result<Message> receipt = control.receive(peer, kReceipt, timeout_ms, "receipt of a descriptor");
    if (!receipt.ok()) return receipt.status();
    OVERLACE_TRY(check_number(*receipt, peer));
  }
  std::vector<int> fds;
  for (UniqueFd& fd : all) fds.push_back(fd.release());
  return fds;
}

}  // namespace overlace::runtime
