"""Mistakes in what is typed, and how the answer begins.

MISTAKES are command lines that are refused before a config is there; MINE stands for a folder of
configs. OPTIONS are refused when the parts of a run are built from a config, before data are read.
"""

LONG, BRIEF = "x" * 5_000, f"{'x' * 100}…"  # as a value
MISTAKES = [
  ("encoding=rprr", "encoding=rprr: no such encoding; did you mean rpr? (32 are known: pyt"),
  (
    "--help encoding=xyz",
    "encoding=xyz: no such encoding (32 are known: python -m posexp.train --help encoding)\n",
  ),
  (
    "experiment=shaw",
    "experiment=shaw: no such experiment; did you mean shaw_clip_k or shaw_absolute or "
    "shaw_keys_values? (46 are known: python -m posexp.train --help experiment)\n",
  ),
  ("--help scan", "--help scan: no such section; task=scan --help task shows this task\n"),
  ("--help tsk", "--help tsk: no such section; did you mean task? --help alone has an index\n"),
  ("task=onw MINE", "task=onw: no such task; did you mean own?"),
  ("experiment=clp MINE", "experiment=clp: no such experiment; did you mean clip?"),
  ("encoding=null", "encoding=null: choose one encoding by its name; -m with a list of names, "),
  ("encoding=", "encoding=: no such encoding (32 are known: python -m posexp.train --help"),
  ("encoding=\udcff", "encoding=�: no such encoding (32 are known: python -m"),
  ("~task.max_length", "~task.max_length: options can be changed, and not removed; leave it out\n"),
  ("-m seed=range(2000000000)", "these are more than 10,000 runs, and a sweep has at most 10,00"),
  (
    "-m seed=0,1 hydra.sweeper.max_batch_size=2",
    "hydra.sweeper.max_batch_size=2: a sweep trains as many runs at once as workers= says; type wo",
  ),
  ("-m pe=rope,none", "pe=rope: there is no option pe; did you mean encoding=rope?\n"),
  ("x=[rope]", "x=[rope]: there is no option x; --help lists the options\n"),
  ("encoding=mr", "encoding=mr: no such encoding; did you mean task=mr?\n"),
  ("task=MR", "task=MR: no such task; did you mean mr? (49 are known: python -m posexp.train"),
  ("SEED=3", "SEED=3: there is no option SEED; did you mean seed?\n"),
  ("--CFG job", "--CFG: no such flag; did you mean --cfg?\n"),
  ("wandb=off wandb.mode=offline", "wandb=off: wandb is a section, set its options one by one, as"),
  ("--json all.json", "--json: no such flag; write options as option=value, as in encoding=rpr; "),
  (
    "runs/m/rpr/0b8/seed=0",
    "runs/m/rpr/0b8/seed=0 is a run's folder: --again runs/m/rpr/0b8/seed=0 trains it again, posex",
  ),
  (
    'wandb.tags=[a,c=d,"e"]',
    'wandb.tags=[a,c=d,"e"]: cannot be read; quote texts in a list one by one, as in '
    """'wandb.tags=["a b","c=d"]'""",
  ),
  (
    "task.train=x,y=z.csv",
    'task.train="x","y=z.csv" is a sweep: add -m to run each value, or write task.train=[...] for '
    """a list, or 'task.train="x,y=z.csv"' for a text""",
  ),
  ("rpr=4", "rpr=4: rpr is a section, set its options one by one; the options of rpr are k, keys"),
  (
    "-m hydra/launcher=slurm hydra.launcher.cpus_per_task=1.5",
    "hydra.launcher.cpus_per_task=1.5: must be an integer or null",
  ),
  (
    "-m hydra/launcher=slurm hydra.launcher.partitoin=gpu",
    "hydra.launcher.partitoin=gpu: there is no option hydra.launcher.partitoin; did you mean hydra"
  ),
  ("-m hydra/launcher=slurm hydra.launcher=5", "hydra.launcher=5: hydra.launcher is a section, "),
  (f"encoding={LONG}", f"encoding={BRIEF}: no such encoding (32 are known: python -m posexp.train"),
  (f"rpr.{LONG}=3", f"rpr.{BRIEF[4:]}: there is no such option; --help lists them\n"),
  ("encoding=rpr rpr.kk=3", "rpr.kk=3: there is no option rpr.kk; did you mean rpr.k?"),
  ("hydra.sweep.dir=x", "hydra.sweep.dir=x has no effect on one run: add -m "),
  ("-m seed=range(0,1,0)", "seed=range(0,1,0): not a range from one number to another"),
  ("rpr.xyz=3", "rpr.xyz=3: there is no option rpr.xyz; the options of rpr are k, keys, values"),
  ("none.x=3", "none.x=3: there is no option none.x; --help lists the options"),
  ("modle.norm=post", "modle.norm=post: there is no option modle.norm; did you mean model.norm?"),
  ("+a=1", "a=1: there is no option a; did you mean transformer_xl.a, with encoding=transform"),
  ("k=4", "k=4: there is no option k; did you mean deberta.k, with encoding=deberta, or rpr.k, "),
  ("k=4 encoding=rpr", "k=4: there is no option k; did you mean rpr.k?\n"),
  ("lr=0.01", "lr=0.01: there is no option lr; did you mean train.learning_rate?\n"),
  ("model.heads=3", "model.heads=3: there is no option model.heads; did you mean model.num_head"),
  (
    "encoding.rope.base=5",
    "encoding.rope.base=5: there is no option encoding.rope.base; did you mean rope.base, with e",
  ),
  (
    "rpr.clip=4",
    "rpr.clip=4: there is no option rpr.clip; did you mean train.clip? The options of rpr are k, ",
  ),
  ("encodng=rpr", "encodng=rpr: there is no option encodng; did you mean encoding=rpr?"),
  ("+rpr.k=3 encoding=rpr", "Could not append to config. An item is already at 'rpr.k'"),
  ("~zzz", "~zzz: options can be changed, and not removed; leave it out"),
  ("seed=${sed}", "seed: Interpolation key 'sed' not found"),
  ("-m runs=${rnus}", "runs: Interpolation key 'rnus' not found"),
  ("encoding=learned rpr.k=4", "rpr.k is set, but encoding=learned; choose encoding=rpr or "),
  (
    "-m encoding=none,learned rpr.k=2,4",
    "rpr.k is set, but encoding=none,learned; choose encoding=rpr or drop rpr.k",
  ),
  (
    "MINE experiment=clip encoding=none",
    "rpr.k is set, but encoding=none; choose encoding=rpr or drop rpr.k",
  ),
  ("seed=0,1", "seed=0,1 is a sweep: add -m to run each value, or write seed=[...] for a list"),
  ("train.steps=3,", "train.steps=3,: a value is missing at a comma; leave out blanks"),
  ("task.lengths=[5,", "task.lengths=[5,: a shell ends a word at a blank: quote the whole option"),
  ("labels={a=b}", "labels={a=b}: cannot be read; write {name: value}, names without blanks and ="),
  ("runs=[a=b", "runs=[a=b: cannot be read; quote the value, as in 'runs=\"[a=b\"'"),
  ("seed=choice()", "seed=choice(): empty choice is not legal"),
  ("-m seed=range(3,1)", "seed=range(3,1): there is no value in it, so no run"),
  ("seed=${oc.env:HOME}", "seed: a config does not read the environment variable HOME, as its "),
  ("seeds=2000000000", "seeds=2000000000: a sweep has at most 10,000 runs; type fewer seeds"),
  ("-m ~hydra.launcher.name hydra/launcher=slurm", "~hydra.launcher.name: options can be "),
  ("-cd=mine", "-cd=mine: write hydra.searchpath=[file://mine] for configs of your own"),
  ("-m seed=0,1 +hydra.launcher.name=x", "+hydra.launcher.name=x: hydra.launcher.name has no ef"),
  ("hydra.searchpath=[file://nothing]", "hydra.searchpath=nothing: there is no such folder"),
  ("plugins=[a=b.py]", "plugins=a=b.py: No such file or directory"),
  ("-m encoding=none,rpr rpr.k=2,inf", "rpr.k=inf: must be an integer"),
  ("hydra.verbose=3", "hydra.job_logging and hydra.verbose do not say how to log; leave "),
  ("+encoding=rpr", "+encoding=rpr: leave out the +\n"),
  ("train.steps=3 train.epochs=2", "train.epochs has no effect beside train.steps: drop one of"),
  ("train.steps=3 train.least_steps=9", "train.least_steps has no effect beside train.steps"),
  ("workers=3", "workers=3 has no effect on one run: add -m for a sweep, or drop it"),
  ("=rpr", "=rpr: a name is missing before =, as in encoding=rpr\n"),
  ("rpr", "rpr: write options as option=value, as in encoding=rpr\n"),
  ("encoding rope", "encoding: write options as option=value, as in encoding=...\n"),
  ("--seed=3", "--seed=3: no such flag; write options as option=value, as in seed=...\n"),
  (
    "--lr 0.1",
    "--lr: no such flag; write options as option=value, as in encoding=rpr; did you mean "
    "train.learning_rate?\n",
  ),
  ("--plugins a.py", "--plugins: write plugins=FILE, without --\n"),
  ("--cfg", "argument --cfg/-c: expected one argument"),
  ("--cfg job -m seed=1,2", "--cfg shows the config of one run: leave -m out"),
  ("--cfg job seed=0,1", "seed=0,1 is a sweep: add -m to run each value, or write seed=[...] "),
  ("-m train.dropout=interval(0,1)", "train.dropout=interval(0,1): not a list of values; write "),
  ("hydra/sweeper=optuna", "hydra/sweeper=optuna: no such hydra/sweeper (known: basic)"),
  ("-m hydra.sweeper.n_trials=2", "hydra.sweeper.n_trials=2: there is no option hydra.sweep"),
  ("-m seed=0,1 runs=mine/task/own.yaml", "runs mine/task/own.yaml cannot be written: mine/"),
  ("seeds=0", "seeds must be at least 1, not 0"),
  (
    "-m seeds=2,3",
    "seeds=2,3: seeds is how many there are, as seeds=3 for the seeds 0 to 2; for these, write "
    "-m seed=2,3\n",
  ),
  ("until=told seed=3", "until=told has no effect on one run: add -m, and leave seed out"),
  ("-m encoding=none,rope until=tld", "until must be one of told, not 'tld'"),
  ("-m encoding=none,rope margin=1", "margin=1.0 has no effect without until=told: add that"),
  ("-m encoding=none,rope until=told margin=0", "margin must be above 0, not 0"),
  ("encoding=short_list", "encoding=short_list stands for six encodings: add -m for a sweep"),
  ("-m encoding=none,rope until=told budget=2", "budget=2: type a time, such as 2h or 90m, or"),
  ("-m encoding=none until=told", "until=told compares two groups or more, of more than 3 seeds"),
  ("-m seeds=3 seed=0,1", "seeds=3 stands for seeds 0 to 2: drop it, or drop seed=..."),
  (
    "MINE -m experiment=clip,clip_too",
    "experiment=clip,clip_too: experiment takes one value; type a sweep for each",
  ),
  ("-m workers=2 hydra/launcher=slurm", "workers=2 are processes of this machine: drop it, or"),
  ("seed=???", "seed is missing: set seed=..."),
  ("rerun=maybe", "rerun=maybe: must be true or false"),
  ("runs=null", "runs=null: must be text"),
  ("-m encoding=none,rpr workers=0", "workers must be auto or at least 1, not 0"),
  ("-m encoding=none,rpr seed=0,-1 workers=2", "seed must be from 0 to 2147483647, not -1"),
  ("-m encoding=none,rpr runs=", "runs must name a folder"),
  ("-m plugins=a.py,b.py", "plugins=a.py,b.py: write a list, plugins=[a.py,b.py]\n"),
  ("tracker=foo", "tracker=foo: no such tracker (known: none, tensorboard, wandb)"),
  ("tracker=none wandb.project=x", "wandb.project=x is of tracker=wandb: choose that tracker"),
  ("-m tracker=tensorboard wandb.mode=online,offline", "wandb.mode=online is of tracker=wandb: "),
]  # fmt: skip

OPTIONS = r"""
task=who_acts model.backbone=cnn => model.backbone=cnn: model=cnn chooses this network and its
encoding=rpr rpr.k=four => rpr.k=four: must be an integer
encoding=rope rope.factor=2 => rope.factor has no effect without scaling
encoding=rope rope.share=0.1 => rope.share=0.1 of a head's 32 channels must be even, as they turn
encoding=rope rope.scaling=yarn => rope.trained_length must be given with scaling=yarn
encoding=rope rope.beta_fast=2 => rope.beta_fast is for scaling=by_parts or scaling=yarn or scaling
encoding=rope rope.scaling=llama3 rope.factor=4 rope.trained_length=8 rope.beta_slow=8 \
 => rope.beta_fast=4 must be above rope.beta_slow=8
encoding=rope rope.values=true rope.key_shift=true rope.share=0.5 \
 => rope.values turn by their own positions, which goes neither with a map, nor with a scaling by
encoding=rope rope.map=rerope rope.map_window=4 rope.map_group=2 \
 => rope.map_group is for map=self_extend; leave it at null
encoding=rope rope.map=dual_chunk rope.trained_length=8 rope.map_chunk=8 \
 => rope.map_chunk must be below trained_length=8
encoding=rope model.d_model=16 rope.scaling=longrope rope.factor=2 rope.trained_length=8 \
 rope.short_factors=[1,1] rope.long_factors=[1] => rope.long_factors must have 2 numbers, one per
encoding=rope model.head_dim=7 => rope.share=1 of a head's 7 channels must be even
encoding=sinusoidal sinusoidal.at=attention sinusoidal.combine=product \
 => sinusoidal.at=attention adds positions to queries and keys, so leave combine at sum
encoding=sinusoidal model.d_model=15 model.num_heads=1 => model: sinusoids come in pairs of sine
encoding=normalized normalized.at=attention => normalized.length must be given with at=attention
encoding=normalized TEXT => normalized.length must be given where no token may look ahead
encoding=learned model.memory=4 TEXT => model.memory=4 would give what the memory holds the same abs
encoding=learned learned.length=2000000000 => model: 256,000,396,290 parameters (model.d_model=128
encoding=binary binary.bits=17 model.d_model=16 => binary.bits=17 are more than the 16 channels of m
encoding=alibi alibi.two_sided=divided model.d_model=9 model.num_heads=3 \
 => alibi.two_sided=divided gives each side half the heads, but 3 is odd (model.d_model=9, model.nu
encoding=deberta deberta.k=8 deberta.log_buckets=16 => deberta.log_buckets=16 must be less than twi
encoding=t5 t5.buckets=32 t5.max_distance=16 => t5.max_distance must be above half of the buckets
encoding=tupe tupe.buckets=32 tupe.max_distance=16 => tupe.max_distance must be above half of the b
encoding=by_layer 'by_layer.pattern=[none,tupe untie_cls=true]' => tupe.untie_cls has no effect wit
encoding=tupe tupe.untie_cls=true task.cls=true positions=shifted positions.reach=9 \
 => tupe.untie_cls=true takes the token at the first position for [CLS], which is anywhere with posi
encoding=by_layer 'by_layer.pattern=[none,tupe untie_cls=true]' task.cls=true positions=shifted \
 positions.reach=9 => model: untie_cls=true takes the token at the first position for [CLS], which i
encoding=rpr rpr.k=4 rpr.table=3 => rpr.table must be at least k=4, not 3
encoding=complex complex.network=real complex.score=modulus => complex.network=real has no complex
encoding=complex complex.order=false complex.wrap=4 => complex.order=false has no waves, so leave w
encoding=complex complex.order=false complex.decay=0.9 => complex.order=false has no positions, so 
encoding=complex complex.frequencies=sinusoids complex.frequency_rate=2 => complex.frequencies=sinu
encoding=complex complex.order=false complex.frequency_rate=0.1 => complex.order=false has no frequ
encoding=complex model.d_ff=15 => model: features come in pairs here, so a width of 15 must be even
encoding=split split.form=added split.norms=joint => split.form=added has one stream, so leave atte
encoding=split split.form=position_only model.head_dim=12 => split makes queries and keys of positi
encoding=split TEXT model.tie_embeddings=true => model.tie_embeddings needs a vector of model.d_mod
encoding=split TEXT split.form=position_only model.logits_scale=2 => model.logits_scale=2 needs
encoding=stick_breaking TEXT model.sinks=head => model.sinks=head is for encodings whose weights a
task=grammar encoding=split model.d_model=6 model.num_heads=1 => model.d_model=6 must be a multip
encoding=split model.attention=fused => model.attention=fused needs a GPU, and here is none
encoding=rpr model.attention=fused => model.attention=fused needs an encoding that its kernels know
encoding=rope model.triangles=true TEXT => model.triangles=true is for encoders alone
encoding=rope rope.layout=half model.triangles=true => model.triangles=true would cut planes of
encoding=rpr model.window=3 TEXT => model.window=3 is for encoders alone
encoding=rpr model=cnn => rpr acts in attention, which model=cnn does not have; choose an encoding
encoding=by_layer by_layer.pattern=[rpo] => by_layer.pattern has a part 'rpo': encoding=rpo: no suc
encoding=by_layer 'by_layer.pattern=[rope bas=3]' => by_layer.pattern has a part 'rope bas=3': rope
encoding=by_layer 'by_layer.pattern=[dape version=3]' => by_layer.pattern has a part 'dape version=
encoding=by_layer 'by_layer.pattern=[rope base]' => by_layer.pattern cannot be read at 'base': writ
encoding=by_layer 'by_layer.pattern=[0 rope]' => by_layer.pattern has a part of 0 layers, which mus
encoding=by_layer 'by_layer.pattern=[rope base=2 base=3]' => by_layer.pattern has base twice in 'ro
encoding=by_layer 'by_layer.pattern=[rope window=0]' => by_layer.pattern has window=0, which must b
encoding=by_layer by_layer.pattern=[by_layer] => by_layer.pattern has by_layer in it, which does no
encoding=by_layer by_layer.pattern=[] => by_layer.pattern must have at least one layer
encoding=delta TEXT model.logits_cap=5 => model.logits_cap=5 is for encodings whose weights are the
encoding=delta TEXT model.qk_norm=true => delta has no logits, and norms queries and keys itself
encoding=by_layer TEXT 'by_layer.pattern=[delta window=3]' => delta keeps a state of all tokens bef
encoding=by_layer by_layer.window=3 => by_layer.window has no effect without a window or a chunk in
positions.kind=shifted => positions.reach must be given where kind=shifted
positions.kind=shifted positions.reach=9 positions.evaluation=drawn => positions.evaluation must be
positions.reach=9 => positions.reach is for positions=randomized and positions=shifted
model.d_model=30 => model.d_model=30 is not divisible by num_heads=4
model.d_model=65536 => model: 34,495,005,698 parameters (model.d_model=65536, model.d_ff=512, model
model.num_kv_heads=8 => model.num_heads=4 is not divisible by num_kv_heads=8
model.tie_embeddings=true => model.tie_embeddings is for models that write words; leave it at false
model.head_cap=30 => model.head_cap is for models that write words; leave it at null
model.conv=1 => model.conv must be 0 or from 2 to 8, not 1
model.conv=4 => model.conv=4 reads the tokens before each one, and an encoder reads both ways
model.conv_of=input => model.conv_of has no effect without conv
model.qk=tied model.num_kv_heads=2 => model.qk=tied needs a head of keys for each query's; see model
encoding=complex model.qk=identity => model.qk=identity: Complex has maps of its own; leave qk at fr
model.qk=orthogonal model.head_dim=64 => model.qk=orthogonal: heads are wider than model.d_model tog
encoding=rpr model.triangles=true => model.triangles=true cuts heads whose logits are products of qu
encoding=rope rope.values=true model.triangles=true => model.triangles=true cuts heads whose logits
encoding=rope rope.imaginary=true => rope.imaginary=true: heads have keys and values by pairs, so se
model.sinks=token model.attention=fused => model.attention=fused needs model.sinks=none: its kernels
model.experts=2 model.experts_used=3 => model.experts_used=3 are more than experts=2
model.norm=post model.first_norm=false => model.first_norm=false leaves out the norm before the firs
model.logits_by=ssmax => model.logits_length must be given with logits_by=ssmax
encoding=rope model.logits_by=llama4 model.logits_length=4 => model.logits_by=llama4 is of positions
model.logits_growth=2 => model.logits_growth is for logits_by=llama4, ministral, beam, inkling
model.match_to=rpr => model.match_to has no effect without match
model.match=flops model.match_to=rprr => model.match_to=rprr: no such model.match_to; did you mean r
model=cnn model.widths=[3,3] => model.widths must be different numbers from 1 to 64, not [3,3]
model=fasttext model.match=flops => model.match=flops: fasttext has no width beside model.d_model th
encoding=learned learned.at=attention model=lstm => learned.at acts in a Transformer's blocks, which
encoding=split split.form=position_only model=lstm => split.form acts in a Transformer's blocks, whi
encoding=split split.norms=joint model=lstm => split.norms acts in a Transformer's blocks, which mod
encoding=complex complex.score=modulus model=lstm => complex.score acts in a Transformer's blocks, w
encoding=complex complex.distances=transformer_xl model=cnn => complex.distances acts in a Transform
encoding=rpr rpr.absolute=sinusoidal rpr.k=4 model=lstm => rpr.k acts in a Transformer's blocks, whi
model=lstm task=multi30k encoding=none => model: model=lstm classifies and can do nothing else
model=lstm task=parity encoding=none => model: model=lstm classifies and can do nothing else
train.warmup=1.5 => train.warmup=1.5: must be an integer
train.steps=0 => train.steps=0 measures the weights of another run as they are: name that run
train.optimizer_options={b3:1} => train.optimizer_options must be those of the optimizer: adamw tak
train.optimizer_options={b1:abc} => train.optimizer_options={b1:abc}: adamw says:
train.optimizer_options=3 => train.optimizer_options=3: must be a mapping or null
task=numbers task.digits=10 => task.digits must be from 1 to places=9, not 10
task=numbers task.beyond=[6,10] => task.beyond must hold counts above digits=5 and up to places=9, n
task=numbers task.digits=1 task.beyond=[] => task.examples must be fewer: 14,900 of them would be n
task=numbers task.years=0.5 task.dates=0.6 => task.dates must be at most 1 - years=0.5, not 0.6
task=numbers task.vocab_size=2147483647 => task.vocab_size must be at most 10000000, not 2147483647
task=scan task.train=a => task.train and test must be set together, or neither for those of split
task=scan task.train=a task.test=b task.split=simple => task.split has no effect with train and tes
task=scan task.split=simple task.longest=24 => task.longest has no effect without split=length
task=copy task.distinct=true => task.kinds must be at least 100 for distinct symbols, not 8
task=copy task.longest=1 task.form=encoder => task.form=encoder gives one symbol, and the answer has
task=tally task.shortest=9 task.longest=3 => task.shortest must be at most longest=3, not 9
task=parity task.lengths=[5,5] => task.lengths must be numbers from 1 on, each larger
task=language_modeling => task.train must name a file of training text
task=language_modeling task.hub=a/b => task.train must name a split of the hub's data set
TEXT task.text=x => task.text must be null: only a table has columns
task=language_modeling task.train=a.csv => task.text must name the column of the text, as train is a
TEXT task.vocab_size=300 => task.vocab_size must be null for tokenizer=byte, which has its own
TEXT task.vocab_size=256 task.tokenizer=bpe => task.vocab_size must be from 257 to 10,000,000 for b
CLASSES task.folds=10 => task.fold must be 0 to 9, not None
CLASSES task.fold=1 => task.fold has no effect without folds
CLASSES task.vocab_size=3 => task.vocab_size must be at least 4 for word, not 3
CLASSES task.tokenizer=bpe task.vocab_size=100 => task.vocab_size must be at least 259 for bpe, not
CLASSES task.max_length=1 task.cls=true => task.max_length must be at least 2, not 1
CLASSES task.package=imdb => task.train must be null beside package=imdb
CLASSES task.hub=a/b task.revision=main => task.revision must be a commit of the hub's data set
CLASSES task.hub=a/b task.package=imdb => task.package and hub exclude each other: set one of them
CLASSES task.name=x/y => task.name must be the name of a folder: up to 200 bytes, without / and line
task=text_classification => task.train must name a file of training examples
task=grammar train.label_smoothing=0.1 => train.label_smoothing=0.1 is for a loss of tokens or cla
PAIRS task.max_length=1 => task.max_length must be at least 2, a token and the end of the sentence
PAIRS task.target=en => task.target must be another language than source=en
PAIRS task.target= => task.target must be a name, not ''
PAIRS task.vocab_size=100 => task.vocab_size must be at least 259, not 100
PAIRS encoding=cope => model: cope is defined for causal attention only, not for an encoder
PAIRS positions=randomized => model: a translation grows word by word, so set positions.evaluation=
"""
SHORT = {
  "TEXT": "task=language_modeling task.train=a.txt",
  "CLASSES": "task=text_classification task.train=a.csv",
  "PAIRS": "task=translation task.train=a",
}


def options() -> list[tuple[str, str]]:
  """The rows of OPTIONS: what is typed, and how the answer begins."""
  rows = (line.split(" => ") for line in OPTIONS.strip().replace("\\\n", "").splitlines())
  return [
    (" ".join(SHORT.get(word, word) for word in typed.split(" ")), said) for typed, said in rows
  ]
