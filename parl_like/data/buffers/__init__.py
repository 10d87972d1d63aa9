"""Buffers of rows, in preallocated memory.

`replay_buffer` ReplayBuffer · `lane_memory` its memory · `reading` which rows belong together, drawing and gathering ·
`fields` the fields of rows · `given_rows` rows on their way to these · `stored_fields` what a buffer keeps of them ·
`by_episode` rows of open episodes · `episodes` EpisodeBuffer · `cached` CachedReplayBuffer · `prioritized` · `reservoir` ·
`saving` buffers in files.
"""
