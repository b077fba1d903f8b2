# Data folders of tones: four units, each a tone of its own.
import math, os, random, struct, wave
TONES = {"A": 300, "B": 700, "C": 1500, "D": 3100}
def sound(path, units, seed, rate=16000):
    """A tone of 0.1 s for each unit, with pauses and some noise."""
    noise, samples, rate = random.Random(int(seed)), [], int(rate)
    for unit in units:
        for i in range(rate // 10):
            tone = math.sin(2 * math.pi * TONES[unit] * i / rate)
            samples.append(0.3 * tone + noise.uniform(-0.02, 0.02))
        pause = noise.randrange(rate // 40, 3 * rate // 40)
        samples += [noise.uniform(-0.02, 0.02) for _ in range(pause)]
    with wave.open(path, "wb") as f:
        f.setparams((1, 2, rate, 0, "NONE", ""))
        f.writeframes(struct.pack(f"<{len(samples)}h",
                                  *(int(32767 * s) for s in samples)))
def make(folder, count, seed, rate=16000):
    os.makedirs(folder)
    draw = random.Random(int(seed))
    lists = {name: open(f"{folder}/{name}", "w") for name in ("wav.scp", "phones", "text",
                                                              "utt2spk")}
    for n in range(int(count)):
        units = [draw.choice("ABCD") for _ in range(draw.randrange(2, 7))]
        name = f"s{n % 3}-{n:03}"
        sound(f"{folder}/{name}.wav", units, n + int(seed), rate)
        lists["wav.scp"].write(f"{name} {name}.wav\n")
        lists["phones"].write(f"{name} {' '.join(units)}\n")
        lists["text"].write(f"{name} {' '.join(units)}\n")
        lists["utt2spk"].write(f"{name} s{n % 3}\n")
