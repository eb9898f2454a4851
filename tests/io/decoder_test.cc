#include <paceline/decoder.h>

#include <gmock/gmock.h>
#include <paceline/error.h>
#include <paceline/record_loader.h>

#include <cstring>
#include <memory>
#include <stdexcept>

#include "augment/image_pipeline.h"
#include "augment/picture.h"
#include "example_decoder.h"
#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string write_set(const TemporaryFolder& folder, const std::vector<std::string>& records) {
  DatasetWriter writer(folder / "set", 1);
  for (std::size_t i = 0; i < records.size(); ++i) writer.write(0, static_cast<std::int64_t>(i), records[i]);
  Manifest manifest;
  manifest.payload = "bytes";
  return writer.finish(manifest);
}

// The first batch of a data set of these records.
Batch decode(const std::vector<std::string>& records, const DecoderFactory& decoder) {
  TemporaryFolder folder;
  RecordLoader loader(write_set(folder, records), {.decoder = decoder});
  loader.start(0);
  Batch batch;
  EXPECT_TRUE(loader.next(batch));
  return batch;
}

std::string reason(const std::string& record, const DecoderFactory& decoder) {
  return error_of<Corrupt>([&] { decode({record}, decoder); });
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

TEST(Decoder, MakesNamedArraysOfAnyType) {
  const std::vector<ExampleArray> arrays = {
      {"data", {2}, DType::kUint8}, {"weight", {}, DType::kFloat64}, {"label", {1}, DType::kInt64}};
  const Batch batch = decode(
      {"ab", "cd"}, decoders::function(arrays, [](std::string_view record, std::uint64_t, std::span<void* const> to) {
        std::memcpy(to[0], record.data(), 2);
        *static_cast<double*>(to[1]) = 0.5;
        *static_cast<std::int64_t*>(to[2]) = static_cast<unsigned char>(record[1]);
      }));
  EXPECT_EQ(batch.data.describe(), "uint8 (2, 2) on cpu");
  EXPECT_THAT(batch.data.to_vector<std::uint8_t>(), ElementsAre('a', 'b', 'c', 'd'));
  EXPECT_THAT(batch.label.to_vector<std::int64_t>(), ElementsAre('b', 'd'));
  EXPECT_EQ(batch.array("weight").describe(), "float64 (2,) on cpu");
  EXPECT_EQ(&batch.array("data"), &batch.data);
  EXPECT_THAT(error_of<InvalidArgument>([&] { (void)batch.array("size"); }),
              HasSubstr("the batch holds no array 'size'; known: data label weight"));
}

TEST(Decoder, IsTheOneThatTheManifestNames) {
  Manifest manifest;
  const auto arrays = [&](const DecoderDescription& decoder) {
    manifest.decoder = decoder;
    return decoders::named_in(manifest)()->arrays();
  };
  const ExampleArray classes{"label", {}, DType::kInt32};
  EXPECT_THAT(arrays({"csv_row", {{"columns", 3}}, {}}), ElementsAre(ExampleArray{"data", {3}}, classes));
  EXPECT_THAT(arrays({"csv_row", {{"columns", 3}, {"label", -1}}, {}}), ElementsAre(ExampleArray{"data", {3}}));
  EXPECT_THAT(arrays({"libsvm_row", {{"features", 5}, {"class_labels", 0}}, {}}),
              ElementsAre(ExampleArray{"data", {5}}, ExampleArray{"label", {}}));
  EXPECT_THAT(arrays({"text", {{"window", 4}}, {}}),
              ElementsAre(ExampleArray{"data", {4}, DType::kInt32}, ExampleArray{"label", {4}, DType::kInt32}));
  EXPECT_THAT(arrays({"tokens", {{"window", 4}, {"bytes", 2}}, {}}), testing::SizeIs(2));
  const ExampleArray data{"data", {2, 2}, DType::kUint8};
  EXPECT_THAT(arrays({"tensor", {{"labels", 0}}, {data}}), ElementsAre(data));
  EXPECT_THAT(arrays({"tensors", {}, {data, classes}}), ElementsAre(data, classes));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                arrays({"video", {{"frames", 2}}, {}});
              }),
              HasSubstr("the decoder video(frames=2), which is not known here"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { arrays({}); }), HasSubstr("names no decoder"));
}

TEST(Decoder, FailsWithFileOffsetAndRecord) {
  TemporaryFolder folder;
  const std::string set = write_set(folder, {"good", "bad", "good"});
  const auto failing = [](const auto& error) {
    return decoders::function({{"data", {}, DType::kFloat32}},
                              [=](std::string_view record, std::uint64_t, std::span<void* const> to) {
                                *static_cast<float*>(to[0]) = 1;
                                if (record == "bad") throw error;
                              });
  };
  const auto run = [&](const DecoderFactory& decoder, OnDamage on_damage = OnDamage::kFail) {
    RecordLoader loader(set, {.on_damage = on_damage, .decoder = decoder});
    std::int64_t examples = 0;
    for (const Batch& batch : EpochRange(loader, 0, {})) examples += batch.examples;
    return examples;
  };
  EXPECT_THAT(error_of<Corrupt>([&] { run(failing(Corrupt("it is sour"))); }),
              HasSubstr("set-00000-of-00001.rec: record 1 at offset 12 is damaged: it is sour"));
  EXPECT_EQ(run(failing(Corrupt("it is sour")), OnDamage::kSkip), 2);
  EXPECT_THAT(error_of<InvalidArgument>([&] { run(failing(InvalidArgument("wrong"))); }),
              HasSubstr("set-00000-of-00001.rec: record 1 at offset 12: wrong"));
  EXPECT_THAT(error_of<Error>([&] { run(failing(std::out_of_range("map::at")), OnDamage::kSkip); }),
              HasSubstr("record 1 at offset 12: the decoder failed: map::at"));
  EXPECT_THAT(error_of<Corrupt>([&] { RecordLoader loader(set); }),
              HasSubstr("its payload is 'bytes', not 'image'; set RecordLoaderOptions::decoder"));
}

TEST(Decoder, SaysWhichArraysCannotBe) {
  const auto body = [](std::string_view, std::uint64_t, std::span<void* const>) {};
  const auto message = [&](const std::vector<ExampleArray>& arrays) {
    return error_of<InvalidArgument>([&] { decode({"x"}, decoders::function(arrays, body)); });
  };
  EXPECT_THAT(message({}), HasSubstr("makes no arrays"));
  EXPECT_THAT(message({{"a", {1}}, {"a", {2}}}), HasSubstr("two arrays 'a'"));
  EXPECT_THAT(message({{"a", {0}}}), HasSubstr("which has no elements"));
}

TEST(Decoder, KnowsTheSeedOfThePosition) {
  TemporaryFolder folder;
  const std::string set = write_set(folder, std::vector<std::string>(20, "x"));
  const auto seeds = [&](int threads, std::int64_t epoch) {
    RecordLoader loader(set, {.batch = 3,
                              .shuffle = 4,
                              .decode_threads = threads,
                              .decoder = decoders::function({{"data", {}, DType::kInt64}},
                                                            [](std::string_view, std::uint64_t seed, auto to) {
                                                              std::memcpy(to[0], &seed, sizeof seed);
                                                            })});
    std::vector<std::int64_t> all;
    for (const Batch& batch : EpochRange(loader, epoch, {}))
      for (const std::int64_t seed : batch.data.to_vector<std::int64_t>()) all.push_back(seed);
    return all;
  };
  EXPECT_EQ(seeds(1, 0), seeds(4, 0));
  EXPECT_NE(seeds(1, 0), seeds(1, 1));
}

TEST(Decoders, TensorWithLabelsAndAlone) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  const std::vector<float> label = {3};
  const Batch alone = decode({bytes_of(values)}, decoders::tensor({.shape = {2, 3}, .labels = 0}));
  EXPECT_EQ(alone.data.describe(), "float32 (1, 2, 3) on cpu");
  EXPECT_EQ(alone.data.to_vector<float>(), values);
  EXPECT_TRUE(alone.label.is_none());
  // As recordio.pack writes it.
  const std::string packed = pack_image_record(label, 0, bytes_of(values));
  const Batch classed = decode({packed}, decoders::tensor({.shape = {6}}));
  EXPECT_EQ(classed.label.describe(), "int32 (1,) on cpu");
  EXPECT_THAT(classed.label.to_vector<std::int32_t>(), ElementsAre(3));
  EXPECT_EQ(decode({packed}, decoders::tensor({.shape = {6}, .class_labels = false})).label.describe(),
            "float32 (1,) on cpu");
  const std::string two = pack_image_record(std::vector<float>{.5f, -1}, 0, bytes_of(values));
  EXPECT_THAT(decode({two}, decoders::tensor({.shape = {6}, .labels = 2})).label.to_vector<float>(),
              ElementsAre(.5f, -1));
  EXPECT_THAT(reason(two, decoders::tensor({.shape = {6}})), HasSubstr("it has 2 labels, expected 1"));
  EXPECT_THAT(reason(packed, decoders::tensor({.shape = {7}})), HasSubstr("its tensor has 24 bytes, expected 28"));
}

TEST(Decoders, TensorsOfASafetensorsFile) {
  TemporaryFolder folder;
  save_safetensors(folder / "a", {{"data", NDArray::from<float>({1, 2}, {2})},
                                  {"label", NDArray::from<std::int32_t>({4}, {})},
                                  {"mask", NDArray::from<std::uint8_t>({0, 1, 1}, {1, 3})},
                                  {"unused", NDArray::zeros({9})}});
  const std::string bytes = read_all(folder / "a");
  const std::vector<ExampleArray> arrays = {
      {"mask", {1, 3}, DType::kUint8}, {"data", {2}, DType::kFloat32}, {"label", {}, DType::kInt32}};
  const Batch batch = decode({bytes, bytes}, decoders::tensors(arrays));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(1, 2, 1, 2));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(4, 4));
  EXPECT_EQ(batch.array("mask").describe(), "uint8 (2, 1, 3) on cpu");
  EXPECT_THAT(reason(bytes, decoders::tensors({{"other", {2}}})), HasSubstr("it holds no array 'other'"));
  EXPECT_THAT(reason(bytes, decoders::tensors({{"data", {3}}})), HasSubstr("'data' is F32 [2], not F32 [3]"));
  EXPECT_THAT(reason("short", decoders::tensors({{"data", {2}}})), HasSubstr("too short"));
  for (std::size_t size = 0; size + 36 < bytes.size(); size += 40)
    EXPECT_THAT(reason(bytes.substr(0, size), decoders::tensors({{"unused", {9}}})), HasSubstr("is damaged: it"));
}

TEST(Decoders, TokensInWindows) {
  const std::string four = bytes_of(std::vector<std::uint16_t>{5, 6, 65535, 8});
  const Batch whole = decode({four}, decoders::tokens({.window = 2, .bytes = 2}));
  EXPECT_EQ(whole.data.describe(), "int32 (1, 2) on cpu");
  EXPECT_THAT(whole.data.to_vector<std::int32_t>(), ElementsAre(5, 6));
  EXPECT_THAT(whole.label.to_vector<std::int32_t>(), ElementsAre(6, 65535));
  const Batch padded = decode({four}, decoders::tokens({.window = 5, .bytes = 2, .padding = 9}));
  EXPECT_THAT(padded.data.to_vector<std::int32_t>(), ElementsAre(5, 6, 65535, 9, 9));
  EXPECT_THAT(padded.label.to_vector<std::int32_t>(), ElementsAre(6, 65535, 8, -1, -1));
  const std::string alphabet = "abcdefghijklmnopqrstuvwxyz";
  const Batch random = decode(std::vector<std::string>(50, alphabet), decoders::text(3, true));
  const std::vector<std::int32_t> data = random.data.to_vector<std::int32_t>();
  const std::vector<std::int32_t> label = random.label.to_vector<std::int32_t>();
  std::vector<bool> begins(26);
  for (std::size_t i = 0; i < data.size(); ++i) {
    EXPECT_EQ(label[i], data[i] + 1);
    if (i % 3 == 0) begins.at(static_cast<std::size_t>(data[i] - 'a')) = true;
  }
  EXPECT_GT(std::count(begins.begin(), begins.end(), true), 5);
  EXPECT_THAT(reason("abc", decoders::tokens({.window = 2, .bytes = 2})), HasSubstr("its 3 bytes are not two tokens"));
  EXPECT_THAT(error_of<InvalidArgument>([] { decoders::tokens({}); }), HasSubstr("window is 0"));
}

TEST(Decoders, RowsOfCsv) {
  const Batch batch = decode({"2, 0.5,-1\r\n", "0,1e3,+7"}, decoders::csv_row({.columns = 2}));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(0.5f, -1, 1000, 7));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(2, 0));
  const Batch last = decode({"1,2,0.25"}, decoders::csv_row({.columns = 2, .label = 2, .class_labels = false}));
  EXPECT_THAT(last.data.to_vector<float>(), ElementsAre(1, 2));
  EXPECT_THAT(last.label.to_vector<float>(), ElementsAre(0.25f));
  EXPECT_TRUE(decode({"1,2"}, decoders::csv_row({.columns = 2, .label = -1})).label.is_none());
  const DecoderFactory rows = decoders::csv_row({.columns = 2});
  EXPECT_THAT(reason("1,2", rows), HasSubstr("it has 2 columns, expected 3"));
  EXPECT_THAT(reason("1,2,", rows), HasSubstr("column 2 is '', expected a finite number"));
  EXPECT_THAT(reason("1,two,3", rows), HasSubstr("column 1 is 'two'"));
  EXPECT_THAT(reason("0.5,1,2", rows), HasSubstr("its label 0.5 is no class"));
}

TEST(Decoders, RowsOfLibsvm) {
  const Batch batch = decode({"1 3:0.5 1:2 # note", "0"}, decoders::libsvm_row({.features = 3}));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(2, 0, 0.5f, 0, 0, 0));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(1, 0));
  const Batch zero =
      decode({"-1 0:1"}, decoders::libsvm_row({.features = 1, .from_zero = true, .class_labels = false}));
  EXPECT_THAT(zero.label.to_vector<float>(), ElementsAre(-1));
  // As csr_matmul() does with the rows of a sparse batch.
  EXPECT_THAT(decode({"1 2:1 2:2"}, decoders::libsvm_row({.features = 2})).data.to_vector<float>(), ElementsAre(0, 3));
  const DecoderFactory rows = decoders::libsvm_row({.features = 3});
  EXPECT_THAT(reason("1 4:1", rows), HasSubstr("index 4 is outside, expected 1 to 3"));
  EXPECT_THAT(reason("1 0:1", rows), HasSubstr("index 0 is outside"));
  EXPECT_THAT(reason("1 x:1", rows), HasSubstr("'x:1' is no feature"));
  EXPECT_THAT(reason("", rows), HasSubstr("'' is no label"));
}

TEST(ImageDecoder, KeepsPixelsAsBytes) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 30, 1);
  RecordLoader bytes(set, {.image = {.random_crop = 1, .dtype = DType::kUint8}});
  RecordLoader numbers(set, {.image = {.scale = 1, .random_crop = 1}});
  bytes.start(0);
  numbers.start(0);
  Batch a, b;
  ASSERT_TRUE(bytes.next(a) && numbers.next(b));
  EXPECT_EQ(a.data.describe(), "uint8 (30, 1, 2, 3) on cpu");
  EXPECT_EQ(a.data.cast(DType::kFloat32).to_vector<float>(), b.data.to_vector<float>());
  EXPECT_THAT(
      error_of<InvalidArgument>([&] { RecordLoader loader(set, {.image = {.mean = {.5f}, .dtype = DType::kUint8}}); }),
      HasSubstr("without mean and deviation"));
}

// What an image becomes by the steps, with borders and turned round, for every width of the rows.
TEST(ImageDecoder, WritesEachChannelAsItsNumbers) {
  std::mt19937_64 random(test_seed());
  for (int width = 1; width < 140; ++width) {
    const int channels = width % 3 ? 3 : 1, height = 3;
    const bool normalized = width % 5 != 0;
    Image image{height, width, channels, {}};
    for (int i = 0; i < height * width * channels; ++i) image.pixels.push_back(static_cast<std::uint8_t>(random()));
    const std::string steps =
        str("random_crop(pad=", width % 4, ",fill=", channels == 3 ? "10:20:30" : "40", ");flip;flip_vertical",
            !normalized     ? ""
            : channels == 3 ? ";normalize(mean=0.5:0.25:0.125,deviation=0.25:0.5:0.75)"
                            : ";normalize(mean=0.5,deviation=0.25)");
    io::ExampleFormat format;
    format.channels = channels;
    format.height = height;
    format.width = width;
    format.dtype = normalized ? DType::kFloat32 : DType::kUint8;
    format.pipeline =
        std::make_shared<io::ImagePipeline>(augment::parse(steps), augment::Size{height, width}, channels);
    ImageCodec codec;
    const float label = 3;
    const std::string bytes = codec.encode(image, ImageEncoding::kRaw);
    const std::string record = pack_image_record({&label, 1}, 0, bytes);

    const auto count = static_cast<std::size_t>(height * width * channels);
    std::vector<float> numbers(count);
    std::vector<std::uint8_t> whole(count);
    std::int32_t its_label = 0;
    io::ExampleDecoder decoder(format);
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      void* const to[] = {normalized ? static_cast<void*>(numbers.data()) : whole.data(), &its_label};
      decoder.decode(record, seed, to);
      EXPECT_EQ(its_label, 3);
      io::PictureMemory memory;
      io::Picture picture(codec, codec.header(bytes), channels, memory);
      format.pipeline->run(picture, seed);
      const std::vector<std::uint8_t>& pixels = picture.pixels().pixels;
      for (std::size_t i = 0; i < count; ++i) {
        const std::size_t plane = static_cast<std::size_t>(height * width), c = i / plane;
        const std::uint8_t pixel = pixels[i % plane * static_cast<std::size_t>(channels) + c];
        if (!normalized) {
          ASSERT_EQ(whole[i], pixel) << steps << ", " << i << " of " << width;
          continue;
        }
        // The compiler may not join the two.
        const volatile float product = static_cast<float>(pixel) * decoder.factor()[c];
        ASSERT_EQ(numbers[i], product + decoder.offset()[c]) << steps << ", " << i << " of " << width;
      }
    }
  }
}

// A data set of one grey and one coloured image, of 2 x 2 pixels.
std::string write_mixed_set(const TemporaryFolder& folder, int height) {
  DatasetWriter writer(folder / "mixed", 1);
  const float label = 0;
  const Image grey{2, 2, 1, {255, 0, 0, 0}};
  const Image colour{2, 2, 3, {255, 0, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0}};
  for (const Image& image : {grey, colour})
    writer.write(0, image.channels, pack_image_record({&label, 1}, 0, ImageCodec().encode(image, ImageEncoding::kPng)));
  Manifest manifest;
  manifest.image = {height, 2, 0};
  return writer.finish(manifest);
}

TEST(ImageDecoder, MakesAllImagesColourWhereTheyDiffer) {
  TemporaryFolder folder;
  RecordLoader loader(write_mixed_set(folder, 2));
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_EQ(batch.data.shape(), (Shape{2, 3, 2, 2}));
  const std::vector<float> values = batch.data.to_vector<float>();
  EXPECT_THAT((std::vector{values[0], values[4], values[8]}), ElementsAre(1, 1, 1));
  EXPECT_THAT((std::vector{values[12], values[16], values[20]}), ElementsAre(1, 0, 1));
  EXPECT_THAT(error_of<InvalidArgument>([&] { RecordLoader again(write_mixed_set(folder, 0)); }),
              HasSubstr("differ in size: pack them in one (im2rec --center_crop --resize 224), or have the loader"));
}

TEST(ImageDecoder, SaysHowToLeaveAnEmptyImageOut) {
  TemporaryFolder folder;
  DatasetWriter writer(folder / "set", 1);
  const float label = 0;
  const Image image{1, 1, 1, {7}};
  writer.write(0, 0, pack_image_record({&label, 1}, 0, ImageCodec().encode(image, ImageEncoding::kPng)));
  writer.write(0, 1, pack_image_record({&label, 1}, 1, ""));
  Manifest manifest;
  manifest.image = {1, 1, 1};
  const std::string path = writer.finish(manifest);
  Batch batch;
  RecordLoader loader(path);
  loader.start(0);
  EXPECT_THAT(error_of<Corrupt>([&] { loader.next(batch); }),
              HasSubstr("record 1 at offset 112 is damaged: the image is empty; --skip_bad leaves such records out"));
  RecordLoader skipping(path, {.on_damage = OnDamage::kSkip});
  testing::internal::CaptureStderr();
  skipping.start(0);
  EXPECT_TRUE(skipping.next(batch));
  EXPECT_EQ(batch.examples, 1);
  EXPECT_FALSE(skipping.next(batch));
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("1 damaged records were left out of this epoch"));
}

}  // namespace
}  // namespace paceline::test
