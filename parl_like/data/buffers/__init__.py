"""Buffers of rows, in preallocated memory.

`base` Buffer · `replay_buffer` ReplayBuffer · `lane_memory` its memory · `reading` which rows belong together, drawing and
gathering · `fields` the fields of rows, as they are given and as they are stored · `given_rows` rows on their way to these ·
`by_episode` rows of open episodes · `episodes` EpisodeBuffer · `cached` CachedReplayBuffer · `prioritized` · `reservoir` ·
`saving` buffers in files.
"""
