#include "src/runtime/bootstrap/fd_exchange.h"
#include "src/runtime/mailbox.h"
namespace overlace {
namespace runtime {
base::Result<std::unique_ptr<Control>> open_socket_control(Bootstrap&, uint64_t, int64_t) {
  return base::Status(Errc::not_supported, "processes");
}
base::Result<std::vector<int>> exchange_fds(Control&, int, int64_t) { return base::Status(Errc::not_supported, "fds"); }
}  // namespace runtime
}  // namespace overlace
