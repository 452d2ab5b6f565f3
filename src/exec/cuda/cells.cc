#include "src/exec/cuda/cells.h"

#include <set>
#include <vector>

#include "src/exec/cuda/streams.h"

namespace overlace::exec {
namespace {

namespace node = runtime::cuda_peer;

template <class T>
base::Status copy_to_device(const std::vector<T>& host, node::LocalMemory* memory, T** device) {
  if (host.empty()) return {};
  base::Result<node::LocalMemory> made =
      node::LocalMemory::copy_of(host.data(), host.size() * sizeof(T), "counts of a schedule");
  if (!made.ok()) return made.status();
  *memory = std::move(*made);
  *device = memory->as<T>();
  return {};
}

}  // namespace

size_t word_index(const TeamPod& pod, const Program& program, int copy, const Word& word) {
  const auto& [signal, slot, rank] = word;
  return size_t{program.id(copy, signal, slot)} * pod.sig_stride + static_cast<size_t>(rank);
}

base::Result<std::shared_ptr<Cells>> make_cells(const Program& program, const Team& team) {
  auto cells = std::make_shared<Cells>();
  const TeamPod& pod = team.pod();
  std::map<Word, uint64_t> sent;  // adds I make there in a call
  for (const spec::Instance& instance : program.expansion.instances) {
    for (const spec::ResolvedSet& set : instance.sets) {
      if (program.is_counter(set.signal)) continue;
      sent[{set.signal, set.slot, set.at}] += static_cast<uint64_t>(set.add);
      if (instance.lane.engine != spec::Engine::sm && team.reach(set.at) != Reach::net)
        cells->posts.emplace(Word{set.signal, set.slot, set.at}, 0);
    }
  }
  const bool can_post = (pod.caps & node::kCapCopyThenFlag) != 0;
  std::erase_if(cells->posts, [&](const auto& post) { return !can_post || sent.at(post.first) != 1; });
  size_t next = 0;
  for (auto& [word, index] : cells->posts) index = next++;

  std::set<Word> of_kernel;
  for (const spec::Instance& instance : program.expansion.instances) {
    if (!is_part(program.task(instance))) continue;
    for (const spec::ResolvedWait& wait : instance.waits) of_kernel.insert({wait.signal, wait.slot, wait.from});
  }
  const int copies = program.shared->copies;
  std::vector<uint64_t> totals;
  for (int copy = 0; copy < copies; ++copy) {
    for (const auto& [word, index] : cells->posts) {  // only I write that slot, and my earlier posts have completed
      const auto& [signal, slot, at] = word;
      const uint64_t* seen = node::slot_address(pod, at, program.id(copy, signal, slot), team.rank());
      uint64_t now = 0;
      OVERLACE_TRY(node::download(&now, seen, sizeof now));
      totals.push_back(now + 1);
    }
  }
  OVERLACE_TRY(copy_to_device(totals, &cells->memory_of_totals, &cells->totals));
  std::vector<node::TicketAdd> moves;
  for (int copy = 0; copy < copies; ++copy) {
    for (size_t signal = 0; signal < program.schedule.signals.size(); ++signal) {
      if (program.is_counter(static_cast<int>(signal))) continue;  // set to 0 in each call
      for (int64_t slot = 0; slot < program.expansion.signal_slots[signal]; ++slot) {
        for (int from = 0; from < program.ranks(); ++from) {
          const int64_t adds = program.expansion.adds(static_cast<int>(signal), slot, from);
          const Word word{static_cast<int>(signal), slot, from};
          if (adds == 0 || of_kernel.contains(word)) continue;
          moves.push_back({pod.ticket + word_index(pod, program, copy, word), static_cast<uint64_t>(adds)});
        }
      }
    }
    for (const auto& [word, index] : cells->posts)
      moves.push_back({cells->totals + static_cast<size_t>(copy) * cells->posts.size() + index, 1});
  }
  cells->num_moves = static_cast<uint32_t>(moves.size() / static_cast<size_t>(copies));
  OVERLACE_TRY(copy_to_device(moves, &cells->memory_of_moves, &cells->moves));
  return cells;
}

KernelContext kernel_context(Channel& channel, Program& program) {
  Shared& shared = *program.shared;
  KernelContext out{.channel = channel, .schedule = program.schedule, .expansion = program.expansion};
  const spec::Schedule& schedule = program.schedule;
  for (size_t b = 0; b < schedule.buffers.size(); ++b) {
    if (schedule.buffers[b].space == spec::Space::symmetric)
      out.memory[schedule.buffers[b].name] = program.symmetric(static_cast<int>(b), 0).offset;
    if (schedule.buffers[b].space == spec::Space::local)
      out.local[schedule.buffers[b].name] = static_cast<char*>(program.workspace) + program.local[b];
  }
  for (size_t i = 0; i < schedule.signals.size(); ++i) {
    const auto signal = static_cast<int>(i);
    out.ids[schedule.signals[i].name] =
        program.is_counter(signal) ? static_cast<uint32_t>(program.counter(signal, 0)) : program.id(0, signal, 0);
  }
  out.pitch = shared.copy_bytes;
  out.copies = shared.copies;
  out.state = &shared.kernel;
  return out;
}

}  // namespace overlace::exec
