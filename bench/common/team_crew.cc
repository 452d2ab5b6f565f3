#include "bench/common/team_crew.h"

#include <algorithm>
#include <cstring>
#include <span>

#if defined(OVERLACE_HAS_CUDA)
#include "bench/common/gpu.h"
#endif

namespace overlace::bench {

base::Status TeamCrew::barrier() {
  try {
    team_.barrier();
    return {};
  } catch (...) {
    return base::status_of_current_exception();
  }
}

base::Result<double> TeamCrew::max_over_ranks(double mine) {
  try {
    double worst = mine;
    for (const Bytes& bytes : team_.exchange(std::as_bytes(std::span(&mine, 1)))) {
      double theirs = 0;
      std::memcpy(&theirs, bytes.data(), std::min(bytes.size(), sizeof theirs));
      worst = std::max(worst, theirs);
    }
    return worst;
  } catch (...) {
    return base::status_of_current_exception();
  }
}

base::Result<std::vector<base::Json>> TeamCrew::gather(const base::Json& mine) {
  try {
    const std::string text = mine.dump();
    std::vector<base::Json> all;
    for (const Bytes& bytes : team_.exchange(std::as_bytes(std::span(text.data(), text.size())))) {
      auto json = base::Json::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "a rank's clocks");
      if (!json.ok()) return json.status();
      all.push_back(std::move(*json));
    }
    return all;
  } catch (...) {
    return base::status_of_current_exception();
  }
}

base::Result<std::unique_ptr<Device>> open_device(int ordinal) {
  if (ordinal < 0) return cpu_device();
#if defined(OVERLACE_HAS_CUDA)
  auto gpu = Gpu::open(ordinal);
  if (!gpu.ok()) return gpu.status();
  return std::unique_ptr<Device>(std::move(*gpu));
#else
  return base::error(Errc::not_supported, "GPU {}: this bench was built without CUDA", ordinal);
#endif
}

}  // namespace overlace::bench
