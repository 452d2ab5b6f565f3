#include "src/model/device.h"

#include "overlace/team.h"

namespace overlace::model {

base::Result<std::unique_ptr<Device>> make_cuda_device(Channel& channel) {
  return base::error(Errc::not_supported, "decoder layers on device streams of rank {} are not available",
                     channel.team().rank());
}

}  // namespace overlace::model
