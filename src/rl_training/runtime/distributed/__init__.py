"""Collection by Ray actors: whole episodes from many processes and machines, for one learner."""
