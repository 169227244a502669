// Decodes a profile of pprof, and prints its samples: process, names of the stack from the root,
// calls, nanoseconds.
const fs = require("fs");
const zlib = require("zlib");
const { Profile } = require(process.argv[2]);

const profile = Profile.decode(zlib.gunzipSync(fs.readFileSync(process.argv[3])));
const text = (number) => profile.stringTable.strings[Number(number)];
const types = profile.sampleType.map((each) => [text(each.type), text(each.unit)]);
const byId = (all) => new Map(all.map((each) => [Number(each.id), each]));
const locations = byId(profile.location);
const functions = byId(profile.function);
const mappings = byId(profile.mapping);

const samples = profile.sample.map((sample) => {
  const labels = new Map(sample.label.map((label) => [text(label.key), label]));
  const stack = sample.locationId.map((id) => {
    const location = locations.get(Number(id));
    const name = text(functions.get(Number(location.line[0].functionId)).name);
    return [name, text(mappings.get(Number(location.mappingId)).filename)];
  });
  return [
    Number(labels.get("pid").num),
    text(labels.get("process").str),
    stack.reverse(),
    ...sample.value.map(Number),
  ];
});
console.log(JSON.stringify({ types, samples }));
