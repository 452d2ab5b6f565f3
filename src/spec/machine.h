// What a schedule is checked against and planned for.
#pragma once

#include <cstdint>
#include <string>

namespace overlace::spec {

struct Machine {
  std::string name = "cpu2";
  bool is_gpu = false;
  int ranks = 2;                // GPUs, or CPU ranks
  int sms = 1;                  // SM lanes' budget; CPU: cores of a rank
  bool has_copy_engine = true;  // CPU: the rank's own agent or its wire thread
  bool has_net_engine = true;   // a NetEngine for `collective`
  int max_connections = 8;      // CUDA_DEVICE_MAX_CONNECTIONS; 1 forbids queue waits (S8)
  int64_t heap_bytes = int64_t{1} << 30;
  int64_t num_signal_ids = 4096;
};

}  // namespace overlace::spec
