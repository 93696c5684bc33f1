"""Amazon SQS over the same queues: AWS JSON 1.0 and the older Query/XML, one set of requests behind both."""
