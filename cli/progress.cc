#include "cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "src/base/format.h"

namespace overlace::cli {

std::string progress_line(double share, std::string_view what, int width) {
  constexpr int kCells = 20;
  const double part = std::clamp(std::isfinite(share) ? share : 0.0, 0.0, 1.0);
  const int full = static_cast<int>(part * kCells);
  std::string line =
      "[" + std::string(static_cast<size_t>(full), '#') + std::string(static_cast<size_t>(kCells - full), '.');
  line += base::format("] {:3.0f} %  {}", std::floor(100 * part), what);
  if (width > 0 && line.size() > static_cast<size_t>(width)) line.resize(static_cast<size_t>(width));
  return line;
}

void Progress::begin(std::string what, double weight) {
  done_ += weight_;
  weight_ = weight;
  what_ = std::move(what);
  update(0);
}

void Progress::update(double share) {
  if (enabled_) draw((done_ + weight_ * std::clamp(share, 0.0, 1.0)) / (total_ > 0 ? total_ : 1));
}

void Progress::draw(double share) {
  constexpr int kWidth = 79;
  std::string line = progress_line(share, what_, kWidth);
  if (line == shown_) return;
  const size_t longer = shown_.size() > line.size() ? shown_.size() - line.size() : 0;
  std::fprintf(out_, "\r%s%s", line.c_str(), std::string(longer, ' ').c_str());
  std::fflush(out_);
  shown_ = std::move(line);
}

void Progress::clear() {
  if (shown_.empty()) return;
  std::fprintf(out_, "\r%s\r", std::string(shown_.size(), ' ').c_str());
  std::fflush(out_);
  shown_.clear();
}

bool shows_progress(int fd, bool quiet) { return !quiet && ::isatty(fd) == 1; }

}  // namespace overlace::cli
