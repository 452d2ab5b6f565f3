// The bootstrap of a rank 0 that serves the others in a thread.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/runtime/bootstrap/relay.h"

namespace overlace::runtime {

class ServingBootstrap final : public Bootstrap {
 public:
  explicit ServingBootstrap(std::unique_ptr<RelayServer> server) : thread_(std::move(server)) {}
  /// Joins as rank 0. `name`: the address that the server listens on.
  base::Status join(const std::string& name, const std::string& token, int size, int64_t timeout_ms) {
    base::Result<std::unique_ptr<Bootstrap>> client = relay_bootstrap(name, token, 0, size, timeout_ms, "rank 0");
    if (!client.ok()) return client.status();
    client_ = std::move(*client);
    return {};
  }
  int rank() const override { return 0; }
  int size() const override { return client_->size(); }
  std::vector<Bytes> allgather(std::span<const std::byte> mine, int64_t timeout_ms) override {
    return client_->allgather(mine, timeout_ms);
  }
  std::string token() const override { return client_->token(); }
  std::string address() const override { return client_->address(); }

 private:
  RelayThread thread_;
  std::unique_ptr<Bootstrap> client_;
};

}  // namespace overlace::runtime
