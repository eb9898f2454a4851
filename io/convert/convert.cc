// A conversion in short: plan which entry goes into which shard; several threads encode blocks of entries, one writes
// the shards in order; then all files get their names. Everything follows from the source and the options, so that an
// interrupted run can be continued.

#include <paceline/convert.h>

#include <paceline/detail/atomic_file.h>
#include <paceline/error.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "convert/ordered_work.h"
#include "convert/plan.h"
#include "convert/source.h"
#include "convert/work_folder.h"
#include "frame.h"
#include "permutation.h"
#include "shard_writer.h"

namespace paceline {
namespace io {

std::uint64_t stable_hash(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char byte : bytes) hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3u;
  return mix(hash);
}

std::string identity_of(const std::vector<std::string>& files) {
  std::string text;
  std::filesystem::path here;  // asked for once, and only where a file has a relative path
  for (const std::string& file : files) {
    std::filesystem::path path = file;
    if (path.is_relative()) {
      if (here.empty()) here = std::filesystem::current_path();
      path = here / path;
    }
    text += path.lexically_normal().string();
    struct stat status = {};
    if (stat(file.c_str(), &status) == 0 && S_ISREG(status.st_mode))
      text += str('\t', status.st_size, '\t', status.st_mtim.tv_sec, '.', status.st_mtim.tv_nsec);
    text += '\n';
  }
  return text;
}

namespace {

// Entries that one thread encodes, all of one shard.
struct Block {
  std::span<const std::int64_t> entries;
  std::size_t shard = 0;  // among those to write
  bool last = false;      // of its shard
};

struct Encoded {
  std::vector<std::pair<std::int64_t, std::string>> records;  // id and bytes
  std::vector<std::pair<std::string, std::string>> bad;       // place and problem
  Tally tally;
};

// A shard, which an earlier run has finished or this one writes.
struct PlannedShard {
  std::string final_path;
  std::span<const std::int64_t> entries;
  ShardResult result;
};

OrderedWork<Encoded>::Body encode_blocks(const RecordSource& source, const std::vector<Block>& blocks,
                                         const std::function<void()>& wait) {
  const std::shared_ptr<EntryEncoder> encoder = source.encoder(wait);
  return [&source, &blocks, encoder](std::size_t number, Encoded& encoded) {
    for (const std::int64_t entry : blocks[number].entries) {
      std::string record;
      Tally of_entry;
      try {
        encoder->encode(entry, record, of_entry);
        if (record.size() > kLengthMask)
          throw Corrupt(str("its record has ", record.size(), " bytes, expected at most ", kLengthMask));
      } catch (const std::exception& error) {
        encoded.bad.emplace_back(source.place(entry), error.what());
        continue;
      }
      ++of_entry.records;
      encoded.tally.merge(of_entry);
      encoded.records.emplace_back(source.id(entry), std::move(record));
    }
  };
}

class Conversion {
 public:
  Conversion(const std::string& prefix, const RecordSource& source, const ConvertOptions& options)
      : prefix_(prefix),
        source_(source),
        options_(options),
        sets_(plan_conversion(prefix, source, options)),
        work_(prefix, identity()) {
    report_.unit = source.unit();
  }

  ConvertReport run() {
    try {
      plan_shards();
      write_shards();
    } catch (const IoError& error) {
      throw IoError(error.what() + what_is_kept());
    }
    std::vector<std::pair<std::string, std::string>> bad;
    for (const PlannedShard& shard : shards_) bad.insert(bad.end(), shard.result.bad.begin(), shard.result.bad.end());
    write_bad_list(bad);
    report_.bad = static_cast<std::int64_t>(bad.size());
    if (report_.bad > 0 && !options_.skip_bad) {
      throw Corrupt(str(report_.bad, " of ", source_.size(), " ", source_.unit(), report_.bad == 1 ? " is" : " are",
                        " bad (listed in ", bad_list(), "); nothing was written; ", options_.skip_hint));
    }
    for (const PlannedShard& shard : shards_) {
      require(shard.result.shard.records > 0, "the shard ", shard.final_path, " would be empty, as all of its ",
              source_.unit(), " are bad; ask for fewer shards");
    }
    work_.keep();  // an error from here on can be mended, and the next run goes on
    publish_all();
    work_.remove();
    return std::move(report_);
  }

 private:
  std::string identity() const {
    std::string text = str("paceline conversion 1\n", options_.shards, ' ', options_.shuffle, ' ', options_.seed, '\n');
    for (const Split& split : options_.splits) text += str(split.name, '\t', split.share, '\n');
    return text + source_.identity();
  }

  void plan_shards() {
    for (const PlannedSet& set : sets_) {
      for (int shard = 0; shard < set.shards; ++shard)
        shards_.push_back({shard_path(set.prefix, shard, set.shards), set.of_shard(shard), {}});
    }
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      PlannedShard& shard = shards_[i];
      if (work_.find(shard.final_path, shard.result)) {
        work_.count_found();
        ++report_.resumed;
        done_ += static_cast<std::int64_t>(shard.entries.size());
        count_bad(shard.result.bad);
        continue;
      }
      add_blocks(shard.entries, i);
    }
  }

  void add_blocks(std::span<const std::int64_t> entries, std::size_t shard) {
    const auto most = static_cast<std::size_t>(source_.block());
    for (std::size_t begin = 0; begin < entries.size(); begin += most) {
      const std::size_t count = std::min(most, entries.size() - begin);
      blocks_.push_back({entries.subspan(begin, count), shard, begin + count == entries.size()});
    }
  }

  void write_shards() {
    const std::function<void()> check = options_.check ? options_.check : [] {};
    const auto tell = [this] {
      if (options_.progress) options_.progress(done_, source_.size());
    };
    tell();
    OrderedWork<Encoded> work(blocks_.size(), options_.threads, [&] { return encode_blocks(source_, blocks_, check); });
    std::unique_ptr<ShardWriter> writer;
    for (const Block& block : blocks_) {
      const std::unique_ptr<Encoded> encoded = work.next();
      check();  // throws before count_bad(): an interrupted wait has marked its entry as bad
      tell();
      PlannedShard& shard = shards_[block.shard];
      if (!writer) writer = std::make_unique<ShardWriter>(work_.path_of(shard.final_path));
      for (const auto& [id, record] : encoded->records) writer->write(id, record);
      shard.result.tally.merge(encoded->tally);
      shard.result.bad.insert(shard.result.bad.end(), encoded->bad.begin(), encoded->bad.end());
      count_bad(encoded->bad);
      done_ += static_cast<std::int64_t>(block.entries.size());
      if (!block.last) continue;
      shard.result.shard = writer->close();
      shard.result.shard.path = std::filesystem::path(shard.final_path).filename().string();
      writer.reset();
      work_.finish(shard.result);
    }
    tell();
  }

  void count_bad(const std::vector<std::pair<std::string, std::string>>& bad) {
    for (const auto& [place, problem] : bad) {
      ++bad_;
      if (options_.on_bad) options_.on_bad(place, problem);
      if (options_.bad_limit > 0 && bad_ > options_.bad_limit) {
        throw Corrupt(str("more than ", options_.bad_limit, " ", source_.unit(), " are bad, the last of them ", place,
                          ": ", problem, "; nothing was written"));
      }
    }
  }

  std::string what_is_kept() {
    work_.keep();
    if (work_.finished() == 0) return "; nothing was written";
    return str("; ", work_.finished(), " of ", shards_.size(), " shards are kept in ", work_.path(),
               ", and the same command goes on from there");
  }

  std::string bad_list() const { return prefix_ + ".bad.txt"; }

  void write_bad_list(const std::vector<std::pair<std::string, std::string>>& bad) const {
    std::string lines;
    for (const auto& [place, problem] : bad) lines += place + '\t' + problem + '\n';
    if (lines.empty())
      unlink(bad_list().c_str());
    else
      write(bad_list(), lines);
  }

  // Writes the text in the work folder and renames it, so that a kill leaves no partial file at `path`.
  void write(const std::string& path, const std::string& text) const {
    detail::AtomicFile::write_text(work_.path_of(path), text);
    rename_file(work_.path_of(path), path);
  }

  void publish_all() {
    const std::vector<std::string> names = source_.number_names();
    std::size_t next = 0;
    for (const PlannedSet& set : sets_) {
      Manifest manifest = source_.description();
      if (options_.shuffle) manifest.shuffle_seed = options_.seed;
      Tally tally;
      std::vector<std::string> written;
      for (int shard = 0; shard < set.shards; ++shard, ++next) {
        const PlannedShard& planned = shards_[next];
        manifest.shards.push_back(planned.result.shard);
        tally.merge(planned.result.tally);
        written.push_back(work_.path_of(planned.final_path));
      }
      tally.describe(manifest, names);
      std::vector<std::pair<std::string, std::string>> companions;
      for (const auto& [name, text] : source_.companions()) {
        companions.emplace_back(work_.path_of(set.prefix + name), set.prefix + name);
        detail::AtomicFile::write_text(companions.back().first, text);
      }
      const std::string staged = work_.path_of(set.prefix + ".manifest");
      report_.sets.push_back({publish(set.prefix, manifest, written, staged, companions), tally.records, set.shards});
    }
  }

  const std::string prefix_;
  const RecordSource& source_;
  const ConvertOptions& options_;
  const std::vector<PlannedSet> sets_;
  WorkFolder work_;
  std::vector<PlannedShard> shards_;
  std::vector<Block> blocks_;
  std::int64_t done_ = 0;
  std::int64_t bad_ = 0;
  ConvertReport report_;
};

}  // namespace
}  // namespace io

ConvertReport convert(const std::string& prefix, const RecordSource& source, const ConvertOptions& options) {
  require(options.threads >= 1, "a conversion needs at least one thread, not ", options.threads);
  require(options.bad_limit >= 0, "the limit of bad entries cannot be ", options.bad_limit);
  require(source.size() > 0, "the source holds no ", source.unit());
  return io::Conversion(prefix, source, options).run();
}

}  // namespace paceline
