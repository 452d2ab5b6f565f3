// Digests that tell one dataset from another, and a dataset from what it was; files that cannot be read.
#pragma once

#include <string>
#include <vector>

#include "src/base/status.h"
#include "src/gnn/dataset/description.h"

namespace overlace::gnn {

/// Names, sizes and 64 pages of each file, the first and the last among them: finds another file, a cut one, most
/// changes; a change between the pages it does not see.
base::Result<std::string> sampled_fingerprint(const std::string& directory, const std::vector<std::string>& files);

/// A read of `path` that failed with `status`, for who was given the path as an argument: io where the system does not
/// let this process read it, else invalid_argument, with the same message.
base::Status unreadable(const std::string& path, const base::Status& status);

/// The id of a dataset: a hash of its fingerprint and sizes.
std::string dataset_id(const Description& description);

}  // namespace overlace::gnn
