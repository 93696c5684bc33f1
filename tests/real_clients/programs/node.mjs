// The AWS SDK for JavaScript against the server of the usual variables. Prints the name of each part that held.
import assert from 'node:assert/strict';
import {randomUUID} from 'node:crypto';
import * as sdk from '@aws-sdk/client-sqs';

const sqs = new sdk.SQSClient({maxAttempts: 1});
const called = new Set();

function call(operation, input) {
  called.add(operation);
  return sqs.send(new sdk[`${operation}Command`](input));
}

async function make(Attributes = {}, tags = undefined) {
  const QueueName = `node-${randomUUID()}${Attributes.FifoQueue ? '.fifo' : ''}`;
  return (await call('CreateQueue', {QueueName, Attributes, tags})).QueueUrl;
}

async function arnOf(QueueUrl) {
  return (await call('GetQueueAttributes', {QueueUrl, AttributeNames: ['QueueArn']})).Attributes.QueueArn;
}

const parts = {
  async queues() {
    const QueueUrl = await make({VisibilityTimeout: '11'}, {a: '1'});
    const QueueName = QueueUrl.split('/').at(-1);
    assert.equal((await call('GetQueueUrl', {QueueName})).QueueUrl, QueueUrl);
    const listed = [];
    called.add('ListQueues');
    for await (const page of sdk.paginateListQueues({client: sqs, pageSize: 1}, {QueueNamePrefix: QueueName})) {
      listed.push(...(page.QueueUrls ?? []));
    }
    assert.deepEqual(listed, [QueueUrl]);
    await call('SetQueueAttributes', {QueueUrl, Attributes: {DelaySeconds: '3'}});
    const {Attributes} = await call('GetQueueAttributes', {QueueUrl, AttributeNames: ['All']});
    assert.deepEqual([Attributes.VisibilityTimeout, Attributes.DelaySeconds], ['11', '3']);
    await call('TagQueue', {QueueUrl, Tags: {b: '2'}});
    await call('UntagQueue', {QueueUrl, TagKeys: ['a']});
    assert.deepEqual((await call('ListQueueTags', {QueueUrl})).Tags, {b: '2'});
    const permission = {QueueUrl, Label: 'theirs', AWSAccountIds: ['111111111111'], Actions: ['SendMessage']};
    await call('AddPermission', permission);
    await call('RemovePermission', {QueueUrl, Label: 'theirs'});
    await call('PurgeQueue', {QueueUrl});
    await call('DeleteQueue', {QueueUrl});
    await assert.rejects(call('GetQueueUrl', {QueueName}), (error) =>
      error instanceof sdk.QueueDoesNotExist && error.$metadata.httpStatusCode === 400);
  },

  // The SDK compares the MD5 of what it sent and got by itself.
  async messages() {
    const QueueUrl = await make();
    const MessageAttributes = {
      text: {DataType: 'String', StringValue: 'ü & <x>'},
      number: {DataType: 'Number', StringValue: '1.50'},
      bytes: {DataType: 'Binary', BinaryValue: new Uint8Array([0, 1, 255])},
    };
    const sent = await call('SendMessage', {QueueUrl, MessageBody: 'one 😀', MessageAttributes});
    const {Messages: [got]} = await call('ReceiveMessage', {
      QueueUrl, MessageAttributeNames: ['All'], MessageSystemAttributeNames: ['All'],
    });
    assert.equal(got.Body, 'one 😀');
    assert.equal(got.MD5OfMessageAttributes, sent.MD5OfMessageAttributes);
    assert.deepEqual([...got.MessageAttributes.bytes.BinaryValue], [0, 1, 255]);
    assert.equal(got.MessageAttributes.number.StringValue, '1.50');
    assert.equal(got.Attributes.ApproximateReceiveCount, '1');
    const {ReceiptHandle} = got;
    await call('ChangeMessageVisibility', {QueueUrl, ReceiptHandle, VisibilityTimeout: 60});
    await call('DeleteMessage', {QueueUrl, ReceiptHandle});
    await assert.rejects(call('DeleteMessage', {QueueUrl, ReceiptHandle: 'none'}), sdk.ReceiptHandleIsInvalid);
  },

  async batches() {
    const QueueUrl = await make();
    const Entries = [...Array(10).keys()].map((n) => ({Id: `e${n}`, MessageBody: n === 3 ? '\u0001' : `m${n}`}));
    const sent = await call('SendMessageBatch', {QueueUrl, Entries});
    assert.deepEqual(sent.Failed.map(({Id, Code}) => [Id, Code]), [['e3', 'InvalidMessageContents']]);
    const {Messages} = await call('ReceiveMessage', {QueueUrl, MaxNumberOfMessages: 10});
    assert.equal(Messages.length, 9);
    const held = Messages.map(({ReceiptHandle}, n) => ({Id: `h${n}`, ReceiptHandle}));
    const changes = held.map((each) => ({...each, VisibilityTimeout: 60}));
    const changed = await call('ChangeMessageVisibilityBatch', {QueueUrl, Entries: changes});
    assert.equal(changed.Successful.length, 9);
    assert.equal((await call('DeleteMessageBatch', {QueueUrl, Entries: held})).Successful.length, 9);
    await assert.rejects(call('SendMessageBatch', {QueueUrl, Entries: []}), sdk.EmptyBatchRequest);
  },

  async fifo() {
    const QueueUrl = await make({FifoQueue: 'true', ContentBasedDeduplication: 'true'});
    for (const MessageBody of ['1', '2', '2', '3']) {
      await call('SendMessage', {QueueUrl, MessageBody, MessageGroupId: 'g'});
    }
    const {Messages} = await call('ReceiveMessage', {QueueUrl, MaxNumberOfMessages: 10});
    assert.deepEqual(Messages.map(({Body}) => Body), ['1', '2', '3']);
  },

  async deadLetters() {
    const dead = await make();
    const SourceArn = await arnOf(dead);
    const RedrivePolicy = JSON.stringify({deadLetterTargetArn: SourceArn, maxReceiveCount: 1});
    const QueueUrl = await make({RedrivePolicy});
    for (const MessageBody of ['a', 'b', 'c']) await call('SendMessage', {QueueUrl, MessageBody});
    await call('ReceiveMessage', {QueueUrl, MaxNumberOfMessages: 10, VisibilityTimeout: 0});
    assert.equal((await call('ReceiveMessage', {QueueUrl})).Messages, undefined);
    assert.deepEqual((await call('ListDeadLetterSourceQueues', {QueueUrl: dead})).queueUrls, [QueueUrl]);
    const slow = await call('StartMessageMoveTask', {SourceArn, MaxNumberOfMessagesPerSecond: 1});
    await call('CancelMessageMoveTask', {TaskHandle: slow.TaskHandle});
    const {Results: [task]} = await call('ListMessageMoveTasks', {SourceArn});
    assert.ok(['CANCELLING', 'CANCELLED'].includes(task.Status), task.Status);
  },

  async longPoll() {
    const QueueUrl = await make();
    const polls = [...Array(10).keys()].map(() => call('ReceiveMessage', {QueueUrl, WaitTimeSeconds: 20}));
    await Promise.all(polls.map((_, n) => call('SendMessage', {QueueUrl, MessageBody: `m${n}`})));
    const got = (await Promise.all(polls)).map(({Messages: [{Body}]}) => Body);
    assert.deepEqual(got.sort(), [...Array(10).keys()].map((n) => `m${n}`));
  },
};

for (const [name, part] of Object.entries(parts)) {
  await part();
  console.log(name);
}
const operations = Object.keys(sdk).filter((name) => /^[A-Z]\w+Command$/.test(name));
const missing = operations.map((name) => name.slice(0, -'Command'.length)).filter((name) => !called.has(name));
assert.deepEqual(missing, []);
console.log(called.size);
