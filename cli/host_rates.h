// What a machine file says of its host: how fast a disk reads, and how fast pinned memory is copied to a GPU.
#pragma once

#include <cstdint>
#include <string>

#include "overlace/machine.h"
#include "src/base/json.h"
#include "src/io/measure.h"

namespace overlace::cli {

/// A rate, and whether it was measured, is a prior, was told or is assumed.
struct HostRate {
  double GBps = 0;
  std::string origin;
};

/// Reads of a disk in requests of so many bytes, as many at a time as read most.
HostRate disk_rate(const spec::Machine& machine, int64_t request_bytes, double assumed_GBps);
/// Copies of 64 MiB to a GPU.
HostRate link_rate(const spec::Machine& machine, double assumed_GBps);

/// `storage` of a machine file: rates by request size, the best over depths; priors where the page cache answered.
spec::Machine::Storage storage_of(const io::StorageFigures& figures);

/// Puts the figures into a machine file in place of those that it has. Where there is no file one with these figures
/// alone is made, called as the file. Throws InvalidArgument for a name not in .json or what is no machine, IoError.
void write_storage(const std::string& path, const spec::Machine::Storage& storage);

/// The name of a machine file and whether it is there; what it has is checked. Throws as write_storage(), before
/// anything is measured.
void check_storage_file(const std::string& path);

/// "read 1.310 GB/s in requests of 1 MiB, ..., measured", or what is missing and what measures it.
std::string storage_text(const spec::Machine& machine);
std::string host_link_text(const spec::Machine& machine);

}  // namespace overlace::cli
